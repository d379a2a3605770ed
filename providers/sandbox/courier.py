"""Carries webhooks out over real connections, as long as any is to come."""

from __future__ import annotations

import asyncio

import httpx

from .hooks import Delivery
from .reactions import Request
from .world import World

LOOK_EVERY_S = 0.02
DEADLINE_S = 15.0


async def carry(world: World, request: Request) -> None:
    """`request`: any that reached the sandbox, to tell under which host its files are."""
    under_way: set[asyncio.Task[None]] = set()
    async with httpx.AsyncClient(
        timeout=DEADLINE_S,
        trust_env=False,
        verify=False,  # noqa: S501  the desk of a developer has what certificate it has
    ) as client:
        while world.hooks.open or under_way:
            for delivery in world.hooks.due(world.tick(), request):
                task = asyncio.create_task(_post(world, client, delivery))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
            await asyncio.sleep(LOOK_EVERY_S)


async def _post(world: World, client: httpx.AsyncClient, delivery: Delivery) -> None:
    status = None
    try:
        answer = await client.post(
            delivery.url, content=delivery.body, headers=dict(delivery.headers)
        )
        status = answer.status_code
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):
        pass
    world.hooks.answered(delivery, status, world.clock())
