"""The text of the scripts: what no run of them would show soon enough."""

import re
from importlib.resources import files

import pytest

from fencebeat.store import AUDIT_LENGTH

TEXTS = {path.name: path.read_text() for path in files("fencebeat").joinpath("lua").iterdir()}
WRITERS = [name for name, text in TEXTS.items() if "XADD" in text]


def test_the_scripts_that_write_the_audit_are_found():
    assert {"acquire.lua", "commit.lua", "recover.lua", "release.lua", "seal.lua", "sync_entries.lua"} <= set(WRITERS)


@pytest.mark.parametrize("name", WRITERS)
def test_every_audit_record_trims_the_stream(name):
    """A stream that one script lets grow fills the broker's memory: elections go on while nothing is committed."""
    adds = re.findall(r"redis\.call\('XADD', [\w\[\]]+, (.*)", TEXTS[name])
    assert adds
    bounded = re.compile(r"'MAXLEN', '~', (KEEP|keep|KEEP_EDITS|EDITS), '\*', ('outcome'|'generation'|'token'|unpack)")
    assert [rest for rest in adds if not bounded.match(rest)] == []


@pytest.mark.parametrize("name", [name for name in WRITERS if "local KEEP =" in TEXTS[name]])
def test_the_scripts_own_length_is_the_one_that_the_others_are_given(name):
    assert re.search(r"local KEEP = (\d+)", TEXTS[name])[1] == str(AUDIT_LENGTH)
