"""A breaker for an upstream API, shared by all sessions of a tenant."""

from itertools import count

import pytest

from catalogue import CIRCUIT_CHECK, CIRCUIT_RECORD
from runguard_http import subset

SESSIONS = count()


def check(flow, session=None, endpoint="orders"):
    """An allowed check; by a session nobody met before unless named."""
    return flow.allowed(CIRCUIT_CHECK, endpoint_key=endpoint, session_id=session or f"fresh-{next(SESSIONS)}")


def refuse(flow, reason, session=None, endpoint="orders"):
    return flow.refused(CIRCUIT_CHECK, reason, endpoint_key=endpoint,
                        session_id=session or f"fresh-{next(SESSIONS)}")


def record(flow, outcome, session=None, endpoint="orders", attempt=1, **more):
    return flow.recorded(CIRCUIT_RECORD, endpoint_key=endpoint, session_id=session or f"fresh-{next(SESSIONS)}",
                         attempt=attempt, outcome=outcome, **more)


def fail(flow, times=1, **more):
    for _ in range(times):
        record(flow, "failure", status_code=503, latency_ms=800, **more)


def trip(flow, second=0, **more):
    """Ten failures at one moment."""
    fail(flow.at(second), 10, **more)


# -- closed ---------------------------------------------------------------------------------------


def test_an_allowed_check_hands_out_a_permit(flow):
    answer = check(flow, "s")
    assert subset(answer, "guard", "session_id", "endpoint_key", "session_attempt_number",
                  "recent_failures_in_window", "probe") == {
        "guard": "api_circuit", "session_id": "s", "endpoint_key": "orders", "session_attempt_number": 1,
        "recent_failures_in_window": 0, "probe": False,
    }
    assert isinstance(answer["permit_id"], str) and answer["permit_id"]
    assert check(flow, "s")["permit_id"] != answer["permit_id"]


def test_recent_failures_are_told_before_the_trip(flow):
    for failures in range(10):
        assert check(flow)["recent_failures_in_window"] == failures
        fail(flow)


def test_ten_failures_of_all_sessions_trip(flow):
    fail(flow.at(0), 9)
    check(flow.at(0))
    fail(flow.at(0), 1)
    refused = refuse(flow.at(1), "circuit_just_tripped")
    assert subset(refused, "endpoint_key", "recent_failures", "failure_window_seconds", "recovery_seconds",
                  "retry_after_seconds") == {
        "endpoint_key": "orders", "recent_failures": 10, "failure_window_seconds": 60, "recovery_seconds": 45,
        "retry_after_seconds": 44,
    }


@pytest.mark.parametrize("tenth_at, trips", [(59.999, True), (60, False)])
def test_a_failure_counts_for_a_minute(flow, tenth_at, trips):
    fail(flow.at(0), 9)
    fail(flow.at(tenth_at), 1)
    if trips:
        refuse(flow, "circuit_just_tripped")
    else:
        assert check(flow)["recent_failures_in_window"] == 1


def test_successes_between_do_not_hide_failures(flow):
    fail(flow, 9)
    record(flow, "success", status_code=200, latency_ms=12)
    fail(flow, 1)
    refuse(flow, "circuit_just_tripped")


def test_endpoints_are_apart(flow):
    trip(flow)
    refuse(flow, "circuit_just_tripped")
    assert check(flow, endpoint="crm")["recent_failures_in_window"] == 0


# -- the session's retry ceiling ------------------------------------------------------------------


def test_three_failed_tries_of_a_session_are_its_ceiling(flow):
    for number in (1, 2, 3):
        assert check(flow, "s")["session_attempt_number"] == number
        record(flow, "failure", "s", attempt=number)
    refused = refuse(flow, "session_retry_ceiling", "s")
    assert subset(refused, "endpoint_key", "session_attempts", "ceiling", "retry_after_seconds") == {
        "endpoint_key": "orders", "session_attempts": 3, "ceiling": 3, "retry_after_seconds": 3600,
    }
    check(flow, "t")
    check(flow, "s", endpoint="crm")


def test_a_success_starts_the_ceiling_anew(flow):
    """It is a retry ceiling: good calls never lock a session out."""
    for _ in range(10):
        assert check(flow, "s")["session_attempt_number"] == 1
        record(flow, "success", "s")
    fail(flow, 2, session="s")
    record(flow, "success", "s")
    assert check(flow, "s")["session_attempt_number"] == 1
    fail(flow, 3, session="s")
    refuse(flow, "session_retry_ceiling", "s")


def test_checks_without_a_record_are_no_attempts(flow):
    for _ in range(10):
        assert check(flow, "s")["session_attempt_number"] == 1


def test_an_attempt_leaves_after_an_hour(flow):
    for second in (0, 100, 200):
        fail(flow.at(second), session="s")
    refuse(flow.at(3599.999), "session_retry_ceiling", "s")
    assert check(flow.at(3600), "s")["session_attempt_number"] == 3


# -- open -----------------------------------------------------------------------------------------


def test_just_tripped_is_said_once_then_open(flow):
    trip(flow, 0)
    refuse(flow.at(1), "circuit_just_tripped")
    for _ in range(3):
        later = refuse(flow.at(2), "circuit_open")
        assert subset(later, "endpoint_key", "phase", "recovery_seconds_remaining", "retry_after_seconds") == {
            "endpoint_key": "orders", "phase": "open", "recovery_seconds_remaining": 43, "retry_after_seconds": 43,
        }


@pytest.mark.parametrize("second, remaining", [(2.001, 43), (2.5, 43), (44, 1), (44.001, 1), (44.999, 1)])
def test_remaining_seconds_are_rounded_up(flow, second, remaining):
    trip(flow, 0)
    refuse(flow.at(1), "circuit_just_tripped")
    assert refuse(flow.at(second), "circuit_open")["recovery_seconds_remaining"] == remaining


def test_open_is_told_before_the_sessions_ceiling(flow):
    fail(flow.at(0), 3, session="s")
    fail(flow.at(0), 7)
    refuse(flow.at(1), "circuit_just_tripped", "s")
    refuse(flow.at(2), "circuit_open", "s")


def test_failures_while_open_do_not_prolong_it(flow):
    trip(flow, 0)
    fail(flow.at(30), 20)
    check(flow.at(45))


# -- half-open ------------------------------------------------------------------------------------


def half_open(flow):
    """Tripped at 0, told at 1, its probe out at 45. Returns the probe's answer."""
    trip(flow, 0)
    refuse(flow.at(1), "circuit_just_tripped")
    refuse(flow.at(44.999), "circuit_open")
    probe = check(flow.at(45), "prober")
    assert probe["probe"] is True
    return probe


def test_one_probe_passes_and_everyone_else_is_refused(flow):
    half_open(flow)
    for second in (45, 46, 60, 74.999):
        assert refuse(flow.at(second), "circuit_open")["phase"] == "half_open"


def test_a_probes_success_closes_and_forgets_the_old_failures(flow):
    """Old failures do not trip it again at once (docs/corrections.md, 2)."""
    probe = half_open(flow)
    record(flow.at(46), "success", "prober", permit_id=probe["permit_id"])
    answer = check(flow.at(46))
    assert subset(answer, "probe", "recent_failures_in_window") == {"probe": False, "recent_failures_in_window": 0}
    fail(flow.at(47), 9)
    check(flow.at(47))
    fail(flow.at(47), 1)
    refuse(flow.at(47), "circuit_just_tripped")


def reopened(flow, probe):
    """The probe failed at 50; whoever asks first is told at 51."""
    record(flow.at(50), "failure", "prober", permit_id=probe["permit_id"])
    response = flow.at(51).post(CIRCUIT_CHECK, {"endpoint_key": "orders", "session_id": "told"})
    assert response.status == 429, response


def test_a_probes_failure_opens_again_for_a_whole_recovery(flow):
    probe = half_open(flow)
    reopened(flow, probe)
    assert refuse(flow.at(52), "circuit_open")["recovery_seconds_remaining"] == 43
    refuse(flow.at(94.999), "circuit_open")
    assert check(flow.at(95))["probe"] is True


def test_a_probe_that_never_reports_frees_its_lease(flow):
    half_open(flow)
    refuse(flow.at(74.999), "circuit_open")
    assert check(flow.at(75))["probe"] is True
    refuse(flow.at(76), "circuit_open")


def test_a_seed_style_probe_without_its_permit_id_settles_too(flow):
    """Callers of before know no permits. The prober's own record must close, or the circuit would hang half-open."""
    half_open(flow)
    record(flow.at(46), "success", "prober")
    assert check(flow.at(46))["probe"] is False


@pytest.mark.parametrize("outcome", ["success", "failure"])
def test_a_result_admitted_before_the_trip_moves_nothing(flow, outcome):
    slow = check(flow.at(0), "slow")
    probe = half_open(flow)
    record(flow.at(46), outcome, "slow", permit_id=slow["permit_id"])
    assert refuse(flow.at(47), "circuit_open")["phase"] == "half_open"
    record(flow.at(48), "success", "prober", permit_id=probe["permit_id"])
    assert check(flow.at(48))["probe"] is False


def test_an_old_result_does_not_count_against_the_closed_circuit_either(flow):
    late = [check(flow.at(0)) for _ in range(10)]
    probe = half_open(flow)
    record(flow.at(46), "success", "prober", permit_id=probe["permit_id"])
    for permit in late:
        record(flow.at(47), "failure", permit["session_id"], permit_id=permit["permit_id"])
    check(flow.at(48))


def test_a_session_at_its_ceiling_does_not_use_up_the_probe(flow):
    fail(flow.at(0), 3, session="s")
    fail(flow.at(0), 7)
    refuse(flow.at(1), "circuit_just_tripped")
    refuse(flow.at(45), "session_retry_ceiling", "s")
    assert check(flow.at(45))["probe"] is True


# -- settings of the breaker ----------------------------------------------------------------------


def test_more_probes(serve):
    flow = serve(config="[guards.api_circuit]\nprobes = 3\n").client()
    trip(flow, 0)
    for _ in range(3):
        assert check(flow.at(45))["probe"] is True
    refuse(flow.at(45), "circuit_open")


def test_recovery_grows_with_each_trip(serve):
    flow = serve(config="[guards.api_circuit]\nrecovery_backoff = 2.0\n").client()
    probe = half_open(flow)
    reopened(flow, probe)
    assert refuse(flow.at(52), "circuit_open")["recovery_seconds_remaining"] == 88
    refuse(flow.at(139.999), "circuit_open")
    check(flow.at(140))


def test_recovery_never_grows_beyond_ten_minutes(serve):
    flow = serve(config="[guards.api_circuit]\nrecovery = 100\nrecovery_backoff = 10.0\n").client()
    trip(flow, 0)
    refuse(flow.at(1), "circuit_just_tripped")
    probe = check(flow.at(100), "prober")
    record(flow.at(105), "failure", "prober", permit_id=probe["permit_id"])
    assert flow.at(106).post(CIRCUIT_CHECK, {"endpoint_key": "orders", "session_id": "told"}).status == 429
    refuse(flow.at(704.999), "circuit_open")
    check(flow.at(705))


def test_failure_rate(serve):
    """Three of four calls failed: over half, long before ten."""
    flow = serve(config="[guards.api_circuit]\nfailure_rate = 0.5\nmin_calls = 4\n").client()
    fail(flow, 2)
    check(flow)  # all failed, but two calls are too few to judge
    record(flow, "success")
    fail(flow, 1)
    refuse(flow, "circuit_just_tripped")


def test_slow_calls(serve):
    flow = serve(config="[guards.api_circuit]\nslow_call_ms = 1000\nslow_rate = 0.5\nmin_calls = 4\n").client()
    for latency in (10, 1500, 1500):
        record(flow, "success", latency_ms=latency)
    check(flow)
    record(flow, "success", latency_ms=1500)
    refuse(flow, "circuit_just_tripped")


def test_an_endpoint_of_its_own(serve):
    flow = serve(config='[guards.api_circuit.endpoints."crm/v2"]\nfailure_threshold = 2\nrecovery = "10s"\n').client()
    fail(flow.at(0), 2, endpoint="crm/v2")
    fail(flow.at(0), 2, endpoint="orders")
    assert refuse(flow.at(1), "circuit_just_tripped", endpoint="crm/v2")["recovery_seconds"] == 10
    check(flow.at(1), endpoint="orders")
    check(flow.at(10), endpoint="crm/v2")
