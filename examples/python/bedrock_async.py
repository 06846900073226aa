"""Eight Bedrock sessions at once with aioboto3: the ones that loop are stopped, the others finish.

Needs no AWS account: a server on this machine plays the agents' traces over the real wire format. Against AWS, leave `endpoint_url`
and the keys out. Install first: the runguard wheel and aioboto3.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import aioboto3

from runguard import TripError
from runguard.adapters.bedrock import guard_invoke_agent_async

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "sdk/python/tests/adapters"))
from bedrock_server import BedrockServer  # noqa: E402

AGENTS = ["RESEARCH", "KBLOOP", "FUNCTIONS", "STORM", "COST", "COLLAB", "CODE", "AGERROR"]


async def ask(client: Any, agent: str, session: str) -> str:
    try:
        answer = await guard_invoke_agent_async(
            client, max_usd=1.00, agentId=agent, agentAliasId="ALIAS", sessionId=session, inputText="Please find out."
        )
        return f"{agent}: {await answer.text()} ({answer.steps} steps, ${answer.run.budget.spent:.4f})"
    except TripError as trip:
        return f"{agent}: stopped. {trip}"


async def main() -> None:
    with BedrockServer() as server:
        keys = {"aws_access_key_id": "unused", "aws_secret_access_key": "unused"}
        session = aioboto3.Session(region_name="us-east-1", **keys)
        async with session.client("bedrock-agent-runtime", endpoint_url=server.url) as client:
            for line in await asyncio.gather(*(ask(client, agent, f"session-{agent}") for agent in AGENTS)):
                print(line)


if __name__ == "__main__":
    asyncio.run(main())
