"""What the target in memory has beyond the suite of all targets: losses that tests ask for."""

import pytest

from index.errors import TargetLost, TargetSick
from index.model import ItemClass, Tombstone
from index.targets.memory import MemoryTarget
from tests.support.documents import classes, make_doc, make_spec, version


@pytest.fixture
def target():
    target = MemoryTarget(make_spec("memory"))
    target.open(1, fresh=True)
    return target


def test_a_dropped_index_refuses_writes_and_is_lost(target):
    target.write([make_doc("p")], version(1), epoch=1)

    target.drop()

    assert classes(target.write([make_doc("p")], version(2), epoch=2)) == [ItemClass.TARGET_SICK]
    with pytest.raises(TargetSick):
        target.refresh()
    with pytest.raises(TargetLost):
        target.open(1, fresh=False)
    target.open(1, fresh=True)
    assert list(target.scan()) == []


def test_a_physical_delete_is_remembered_until_it_is_forgotten(target):
    doc = make_doc("p")
    target.write([doc], version(1), epoch=1)
    target.bury([Tombstone(doc.index_id, doc.tenant_id, doc.doc_uid, version(3))])
    target.refresh()
    assert target.purge(-1) == 1

    assert classes(target.write([doc], version(2), epoch=2)) == [ItemClass.SUPERSEDED]
    target.forget_deletes()
    assert classes(target.write([doc], version(2), epoch=2)) == [ItemClass.OK]


def test_the_mark_tells_the_incarnation(target):
    assert target.marked_incarnation == 1
    target.open(4, fresh=False)
    assert target.marked_incarnation == 4
    target.drop()
    assert target.marked_incarnation is None
