"""A Bedrock agent that asks its knowledge base in circles, stopped by RunGuard; then the same through an unmodified client.

Needs no AWS account: a server on this machine plays the agent's trace over the real wire format. Against AWS, leave `endpoint_url`
and the keys out. Install first: the runguard wheel and boto3.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import boto3

from runguard import BudgetExceededError, LoopDetectedError
from runguard.adapters.bedrock import guard_invoke_agent, instrument

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "sdk/python/tests/adapters"))
from bedrock_server import BedrockServer  # noqa: E402


def connect(server: BedrockServer) -> Any:
    return boto3.client(
        "bedrock-agent-runtime", region_name="us-east-1", endpoint_url=server.url, aws_access_key_id="unused", aws_secret_access_key="unused"
    )


def ask(client: Any, agent: str, session: str) -> None:
    try:
        answer = guard_invoke_agent(client, max_usd=1.00, agentId=agent, agentAliasId="ALIAS", sessionId=session, inputText="Please find out.")
        print(f"{agent}: {answer.text()} ({answer.steps} steps, ${answer.run.budget.spent:.4f})")
    except LoopDetectedError as trip:
        print(f"{agent}: loop of {trip.pattern}, {trip.repeats} times. {trip}")
    except BudgetExceededError as trip:
        print(f"{agent}: ${trip.spent:.4f} spent of ${trip.limit:.2f}. {trip}")


def main() -> None:
    with BedrockServer() as server:
        client = connect(server)
        ask(client, "RESEARCH", "session-1")
        ask(client, "KBLOOP", "session-2")
        ask(client, "STORM", "session-3")
        ask(client, "COST", "session-4")

        print("The tripped session again: nothing is sent.")
        before = len(server.served)
        ask(client, "KBLOOP", "session-2")
        assert len(server.served) == before

        print("A client that other code goes on using as before:")
        hooked = connect(server)
        instrument(hooked, repeats=3, max_usd=1.00)
        try:
            response = hooked.invoke_agent(agentId="AGERROR", agentAliasId="ALIAS", sessionId="session-5", inputText="Please find out.")
            for event in response["completion"]:
                if "chunk" in event:
                    print(event["chunk"]["bytes"].decode())
        except LoopDetectedError as trip:
            print(f"AGERROR: {trip}")


if __name__ == "__main__":
    main()
