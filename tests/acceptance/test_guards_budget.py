"""Budgets that many sessions share: granted by all or by none, kept over edits, midnights and restarts."""

import time

from catalogue import BUDGET_CHECK, BUDGET_COMMIT, BUDGET_RECORD, BUDGET_RESERVE

SCOPES = """
[guards.budget]
time_zone = "Europe/Berlin"
[guards.budget.scopes.tenant.day]
max_usd = {day}
[guards.budget.scopes.team.total]
max_usd = 2
[guards.budget.scopes.run.total]
max_usd = 1.5
"""
DAY = 86_400
TEAM = [{"per": "team", "name": "search"}]


def blocked(flow, path: str, **fields) -> dict:
    return flow.refused(path, "budget_exceeded", **fields)


def test_what_is_granted_is_granted_by_all(serve):
    flow = serve(config=SCOPES.format(day=3)).client()
    first = flow.allowed(BUDGET_RESERVE, session_id="a", usd=1.25, scopes=TEAM)
    assert first["remaining_usd"] == 0.25, "what the run has left, of all its budgets"
    refused = blocked(flow, BUDGET_RESERVE, session_id="b", usd=1, scopes=TEAM)
    assert (refused["level"], refused["scope"], refused["scope_name"]) == ("scope", "team", "search")
    assert (refused["limit_usd"], refused["reserved_usd"], refused["remaining_usd"]) == (2, 1.25, 0.75)
    flow.allowed(BUDGET_COMMIT, session_id="a", usd=1, reservation_id=first["reservation_id"], scopes=TEAM)
    flow.allowed(BUDGET_RECORD, session_id="b", usd=1, scopes=TEAM)
    assert blocked(flow, BUDGET_CHECK, session_id="a", budget="other", usd=0.51)["scope"] == "run"
    flow.allowed(BUDGET_RECORD, session_id="c", usd=0.5)
    refused = blocked(flow, BUDGET_CHECK, session_id="d", usd=0.51)
    assert (refused["scope"], refused["spent_usd"]) == ("tenant/day", 2.5)
    assert 0 < refused["renews_in_seconds"] == refused["retry_after_seconds"] <= DAY


def test_a_day_begins_anew_and_an_edited_limit_finds_what_was_used(serve):
    server = serve(config=SCOPES.format(day=1))
    flow = server.client()
    flow.allowed(BUDGET_RECORD, session_id="a", usd=1)
    renews = blocked(flow, BUDGET_CHECK, session_id="b", usd=0.5)["renews_in_seconds"]
    server.config_file.write_text(SCOPES.format(day=1.5))
    deadline = time.monotonic() + 15
    while flow.post(BUDGET_CHECK, {"session_id": "b", "usd": 0.5}).status != 200:
        assert time.monotonic() < deadline, "the higher limit is not taken over"
        time.sleep(0.05)
    assert blocked(flow, BUDGET_CHECK, session_id="b", usd=0.51)["spent_usd"] == 1
    server.restart()
    flow = server.client()
    assert blocked(flow, BUDGET_CHECK, session_id="b", usd=0.51)["spent_usd"] == 1, "a restart loses nothing"
    flow.wait(renews - 1)
    blocked(flow, BUDGET_CHECK, session_id="b", usd=0.51)
    flow.wait(1)
    flow.allowed(BUDGET_CHECK, session_id="b", usd=1.5)


def test_an_erased_session_leaves_no_trace_in_the_names_of_scopes(serve):
    server = serve(config=SCOPES.format(day=3))
    flow = server.client()
    flow.allowed(BUDGET_RECORD, session_id="erase-me-7781", usd=1, scopes=TEAM)
    assert flow.delete("/v1/sessions/erase-me-7781").json["erased"] is True
    server.stop()
    assert server.files_containing("erase-me-7781") == []
    flow = server.start().client()
    assert blocked(flow, BUDGET_CHECK, session_id="b", usd=1.1, scopes=TEAM)["spent_usd"] == 1, "what the team has spent stays spent"


def test_mistakes_are_named(serve):
    flow = serve().client()
    for scopes in ("team", [{"per": "team"}], [{"per": "team", "name": "a", "period": "hour"}], [{"per": "a b", "name": "x"}]):
        response = flow.post(BUDGET_CHECK, {"session_id": "a", "scopes": scopes})
        assert response.status in (400, 422) and "scopes" in response.text, response


def test_a_limit_that_is_given_with_a_check_stays_until_another_is(serve):
    flow = serve(config="[guards.budget]\nmax_usd = 10\n").client()
    asked = flow.allowed(BUDGET_CHECK, session_id="s", usd=0.5, max_usd=1)
    assert (asked["limit_usd"], asked["spent_usd"], asked["remaining_usd"]) == (1, 0, 1), "nothing is counted"
    assert blocked(flow, BUDGET_CHECK, session_id="s", usd=1.5)["limit_usd"] == 1
    blocked(flow, BUDGET_RESERVE, session_id="s", usd=1.5)
    assert flow.allowed(BUDGET_CHECK, session_id="s", usd=1.5, max_usd=2)["limit_usd"] == 2
    flow.allowed(BUDGET_RECORD, session_id="s", usd=1.5)
    assert blocked(flow, BUDGET_CHECK, session_id="s", usd=0.25, max_usd=1)["limit_usd"] == 1
    assert flow.allowed(BUDGET_CHECK, session_id="s", usd=0.25)["limit_usd"] == 2, "a refusal changes nothing"
    # Not above that of the settings.
    assert flow.allowed(BUDGET_CHECK, session_id="s", usd=8, max_usd=50)["limit_usd"] == 10
    assert blocked(flow, BUDGET_CHECK, session_id="s", usd=9)["limit_usd"] == 10


def test_a_session_tells_how_its_budgets_stand(serve):
    flow = serve(config=SCOPES.format(day=3) + "[guards.budget.scopes.run.day]\nmax_tokens = 500\n").client()
    flow.allowed(BUDGET_RECORD, session_id="a", usd=0.5, tokens=100, max_usd=1, scopes=TEAM)
    flow.allowed(BUDGET_RESERVE, session_id="a", usd=0.25, tokens=50, scopes=TEAM)
    flow.allowed(BUDGET_RECORD, session_id="a", budget="images", usd=0.125)
    flow.allowed(BUDGET_RECORD, session_id="b", usd=1)
    budgets = flow.get("/v1/sessions/a").json["budgets"]
    names = ("scope", "spent_usd", "reserved_usd", "limit_usd", "remaining_usd", "spent_tokens", "limit_tokens", "remaining_tokens")
    assert [tuple(budget[name] for name in names) for budget in budgets] == [
        ("default", 0.5, 0.25, 1, 0.25, 100, None, None),
        ("images", 0.125, 0, None, None, 0, None, None),
        ("run", 0.625, 0.25, 1.5, 0.625, 100, None, None),
        ("run/day", 0.625, 0.25, None, None, 100, 500, 350),
    ], "its own, not what it shares with others"
    assert {(budget["tenant"], budget["name"]) for budget in budgets} == {("default", "a")}
    assert [budget["renews_at"] is None for budget in budgets] == [True, True, True, False]
    flow.wait(DAY)
    [*_, last] = flow.get("/v1/sessions/a").json["budgets"]
    assert (last["scope"], last["spent_tokens"], last["remaining_tokens"]) == ("run/day", 0, 500), "a day that is over has begun anew, and the lease has ended"
    assert last["renews_at_ms"] == budgets[-1]["renews_at_ms"] + DAY * 1000
