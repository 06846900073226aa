"""An action-group Lambda function whose table is gone, and an AgentCore hook: RunGuard ends the retries of both.

Needs no AWS account: the events are built here, in the shape in which Bedrock sends them. Install first: the runguard wheel.
In production give `guard_action_group` a place that all copies of the function share: `dynamodb_table=`, `redis_url=` or the `url=` of a
RunGuard service.
"""

from __future__ import annotations

import json
from typing import Any

from runguard.adapters.aws_lambda import AgentCoreGuard, guard_action_group


@guard_action_group
def lambda_handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    print("  the table is asked")
    body = {"application/json": {"body": json.dumps({"error": "ResourceNotFoundException: table orders"})}}
    where = {"actionGroup": event["actionGroup"], "apiPath": event["apiPath"], "httpMethod": event["httpMethod"]}
    return {"messageVersion": "1.0", "response": {**where, "httpStatusCode": 500, "responseBody": body}}


before_tool_call = AgentCoreGuard(repeats=3)


def main() -> None:
    event = {
        "messageVersion": "1.0",
        "sessionId": "session-1",
        "actionGroup": "orders",
        "apiPath": "/orders/{id}",
        "httpMethod": "GET",
        "parameters": [{"name": "id", "type": "string", "value": "7"}],
    }
    for number in range(1, 5):
        print(f"call {number} of the action group")
        response = lambda_handler(event, None)["response"]
        print(f"  {response['httpStatusCode']}: {response['responseBody']['application/json']['body']}")

    hook = {"type": "before_tool_call", "runtimeSessionId": "session-2", "toolName": "search", "toolInput": {"query": "rust"}}
    for number in range(1, 5):
        print(f"tool call {number} of the harness: {before_tool_call(hook, None)}")


if __name__ == "__main__":
    main()
