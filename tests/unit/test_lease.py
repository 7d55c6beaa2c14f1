import pytest

from fencebeat.errors import ImpossibleConfiguration
from fencebeat.lease import LeaseTiming, trusted_until


def test_the_defaults_are_in_proportion_to_the_lease():
    timing = LeaseTiming.of(5.0)

    assert timing == LeaseTiming(lease=5.0, renew_every=5 / 3, margin=0.5, call_timeout=2.0)
    assert LeaseTiming.of(1.0).call_timeout == 0.4


def test_a_slow_reply_shortens_trust_and_never_stretches_it():
    assert trusted_until(attempt_started=100.0, lease=5.0, margin=0.5) == 104.5


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"margin": 0.0}, "margin must be positive"),
        ({"renew_every": 0.0}, "renew_every must be positive"),
        ({"call_timeout": 0.0}, "call_timeout must be positive"),
        ({"renew_every": 5.0}, "must leave room for two renewals, 5 s each (renew_every)"),
        ({"call_timeout": 6.0}, "call_timeout (6 s) must be shorter than the time of trust: lease (5 s) less margin"),
        ({"progress_within": 0.5}, "progress_within must be longer than 1 s"),
    ],
)
def test_timings_that_cannot_work_are_refused_with_the_settings_named(change, sentence):
    sound = {"lease": 5.0, "renew_every": 1.5, "margin": 0.5, "call_timeout": 2.0}

    with pytest.raises(ImpossibleConfiguration) as refusal:
        LeaseTiming(**sound | change)

    assert sentence in str(refusal.value)


def test_all_broken_rules_are_told_at_once():
    with pytest.raises(ImpossibleConfiguration) as refusal:
        LeaseTiming(lease=5.0, renew_every=5.0, margin=0.5, call_timeout=6.0)

    text = str(refusal.value)
    assert "renew_every" in text
    assert "call_timeout" in text
    assert "lease (5 s)" in text
