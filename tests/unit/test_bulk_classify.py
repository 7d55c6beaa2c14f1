"""What each answer of OpenSearch means, on replies recorded from OpenSearch 3.6 (recorded/opensearch_3_6_bulk.json)."""

import json
from pathlib import Path

import pytest
from opensearchpy.exceptions import (
    AuthenticationException,
    ConnectionTimeout,
    SerializationError,
    SSLError,
    TransportError,
)
from opensearchpy.exceptions import (
    ConnectionError as Broken,
)

from index.model import ItemClass
from index.targets.classify import classify_item, classify_sqlstate, fault_of

RECORDED = json.loads((Path(__file__).parent / "recorded" / "opensearch_3_6_bulk.json").read_text())


def first_item(name):
    ((said,),) = [item.values() for item in RECORDED[name]["body"]["items"][:1]]
    return said["status"], said.get("error")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ok", ItemClass.OK),
        ("conflict", ItemClass.SUPERSEDED),
        ("mapping", ItemClass.PERMANENT),
        ("strict", ItemClass.PERMANENT),
        ("dim", ItemClass.PERMANENT),
        ("nan", ItemClass.PERMANENT),
        ("zero", ItemClass.PERMANENT),
        ("immense", ItemClass.PERMANENT),
        ("norouting", ItemClass.PERMANENT),
        ("baddoc", ItemClass.PERMANENT),
        ("missing", ItemClass.TARGET_SICK),
        ("notalias", ItemClass.TARGET_SICK),
        ("readonly", ItemClass.TARGET_SICK),
        ("wblock", ItemClass.TARGET_SICK),
        ("flood", ItemClass.TARGET_SICK),  # a 429 that no waiting mends
        ("closed", ItemClass.TARGET_SICK),  # a 400 that is not the document's fault
        ("unavailable", ItemClass.TRANSIENT),
    ],
)
def test_recorded_items(name, expected):
    assert classify_item(*first_item(name))[0] is expected


def test_a_reason_names_the_innermost_cause():
    _, reason = classify_item(*first_item("dim"))

    assert "mapper_parsing_exception" in reason
    assert "Vector dimension mismatch. Expected: 3, Given: 2" in reason


@pytest.mark.parametrize(
    ("status", "kind", "expected"),
    [
        (429, "es_rejected_execution_exception", ItemClass.TRANSIENT),
        (429, "circuit_breaking_exception", ItemClass.TRANSIENT),
        (500, "something_new", ItemClass.TRANSIENT),
        (502, "", ItemClass.TRANSIENT),
        (503, "cluster_block_exception", ItemClass.TRANSIENT),  # starting, or electing: passes by itself
        (504, "", ItemClass.TRANSIENT),
        (401, "", ItemClass.TARGET_SICK),
        (403, "security_exception", ItemClass.TARGET_SICK),
        (404, "", ItemClass.TARGET_SICK),
        (413, "", ItemClass.SPLIT),
        (0, "", ItemClass.TRANSIENT),  # an item without a status: nothing is known
    ],
)
def test_items_that_are_hard_to_record(status, kind, expected):
    assert classify_item(status, {"type": kind, "reason": "why"})[0] is expected


@pytest.mark.parametrize("name", ["negver", "longid"])
def test_a_request_that_one_item_spoils_is_split(name):
    recorded = RECORDED[name]
    error = TransportError(recorded["status"], recorded["body"]["error"]["type"], recorded["body"])

    assert fault_of(error).outcome is ItemClass.SPLIT


@pytest.mark.parametrize(
    ("error", "expected", "unknown"),
    [
        (ConnectionTimeout("TIMEOUT", "read timed out", None), ItemClass.TRANSIENT, True),
        (Broken("N/A", "reset by peer", None), ItemClass.TRANSIENT, True),
        (SerializationError("{", "cut"), ItemClass.TRANSIENT, True),
        (SSLError("N/A", "certificate verify failed", None), ItemClass.TARGET_SICK, False),
        (AuthenticationException(401, "Unauthorized", ""), ItemClass.TARGET_SICK, False),
        (TransportError(413, "", "too large"), ItemClass.SPLIT, False),
        (TransportError(429, "", "slow down"), ItemClass.TRANSIENT, False),
        (TransportError(503, "", ""), ItemClass.TRANSIENT, False),
    ],
)
def test_whole_requests(error, expected, unknown):
    fault = fault_of(error)

    assert (fault.outcome, fault.outcome_unknown) == (expected, unknown)
    assert fault.reason


def test_an_exception_that_is_not_about_a_request_is_none_of_ours():
    assert fault_of(ValueError("a bug")) is None


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (None, ItemClass.TRANSIENT),  # the connection broke
        ("08006", ItemClass.TRANSIENT),
        ("40001", ItemClass.TRANSIENT),
        ("40P01", ItemClass.TRANSIENT),
        ("55P03", ItemClass.TRANSIENT),
        ("57014", ItemClass.TRANSIENT),
        ("57P01", ItemClass.TRANSIENT),
        ("53300", ItemClass.TRANSIENT),
        ("XX000", ItemClass.TRANSIENT),  # pgvector beside VACUUM
        ("53100", ItemClass.TARGET_SICK),
        ("42P01", ItemClass.TARGET_SICK),
        ("42501", ItemClass.TARGET_SICK),
        ("25006", ItemClass.TARGET_SICK),
        ("22P05", ItemClass.PERMANENT),
        ("22021", ItemClass.PERMANENT),
        ("54000", ItemClass.PERMANENT),
    ],
)
def test_postgres_errors(state, expected):
    assert classify_sqlstate(state) is expected
