"""The methods that are made from the service's tables: what they send."""

from __future__ import annotations

from typing import Any, Mapping, Optional

import pytest

from runguard import Client


class Told(Client):
    def request(self, method: str, path: str, body: Optional[Mapping[str, Any]] = None) -> dict[str, Any]:
        return {"path": path, "body": body}


@pytest.fixture
def client() -> Told:
    return Told("http://127.0.0.1:1")


def test_what_is_not_given_is_not_sent(client: Told) -> None:
    told = client.kb_requery_record("s", "how do refunds work", 0.4)
    assert told["body"] == {"session_id": "s", "query": "how do refunds work", "confidence_score": 0.4}, "0 chunks would be a failed retrieval"
    assert client.kb_requery_record("s", "q", 0.4, 3)["body"]["retrieved_chunks"] == 3


def test_required_fields_come_in_the_order_of_the_table_and_one_optional_field_may_follow(client: Told) -> None:
    assert client.api_circuit_check("orders", "s")["body"] == {"endpoint_key": "orders", "session_id": "s"}
    assert client.stall("s", "read_file", result="3 lines")["body"] == {"session_id": "s", "tool": "read_file", "result": "3 lines"}
    assert client.budget_commit("s", "r1", usd=0.1)["body"] == {"session_id": "s", "reservation_id": "r1", "usd": 0.1}


def test_fields_newer_than_the_package_are_passed_on(client: Told) -> None:
    assert client.handoff("s", "a", "b", later=1)["body"] == {"session_id": "s", "source_bot": "a", "target_bot": "b", "later": 1}
