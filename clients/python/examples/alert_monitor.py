"""A monitor that evaluates alert rules, one process a machine beside `shardwise serve`. Three levels:

1. Each rule is evaluated by exactly one monitor, which holds it: `python alert_monitor.py run POLICY URL PORT`
2. A command goes to one monitor:   `python alert_monitor.py silence POLICY URL INSTANCE RULE`
3. The status of one, or of all:    `python alert_monitor.py status POLICY URL [INSTANCE]`
   What any monitor can answer:     `python alert_monitor.py rules POLICY URL`

URL is the sidecar's, which runs a policy with `ownership = "exclusive"` and `--forward-to http://127.0.0.1:PORT`. A command also needs the tokens
of the operator (`SHARDWISE_TOKEN` here) and of the members. Replace `evaluate` by yours. All output is JSON, one line each.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, Callable

from shardwise_client import Client, Entered, LeaseEnded, Refused, Request, RequestHandlers, RequestServer, ShardwiseError, SlotChange

RULES = [f"{rule}-high" for rule in ("cpu", "memory", "disk", "latency", "errors", "queue", "certificates", "backups")]
ROUND_SECONDS = 0.2


def report(did: str, **more: object) -> None:
    print(json.dumps({"did": did, **more}), flush=True)


class Monitor:
    """What one monitor is doing."""

    def __init__(self) -> None:
        self.evaluating: set[str] = set()
        self.silenced: set[str] = set()
        self.evaluations = 0

    async def evaluate(self, rule: str, entered: Entered) -> None:
        """Evaluates one rule again and again. It is cancelled when this monitor must hand the rule over, or has lost it."""
        self.evaluating.add(rule)
        report("began", rule=rule, slot=entered.fence.slot, epoch=entered.fence.epoch)
        try:
            while True:
                # Here a real one reads its metrics. What it writes carries the fence, so that a monitor that was paused overwrites nothing.
                self.evaluations += 1
                if rule not in self.silenced:
                    report("evaluated", rule=rule, epoch=entered.fence.epoch)
                await asyncio.sleep(ROUND_SECONDS)
        finally:
            self.evaluating.discard(rule)
            report("ended", rule=rule)

    def handlers(self) -> RequestHandlers:
        handlers = RequestHandlers()

        @handlers.on_request("status")
        def status(_: Request) -> dict[str, Any]:
            return {"rules": sorted(self.evaluating), "silenced": sorted(self.silenced), "evaluations": self.evaluations}

        @handlers.on_request("silence")
        def silence(request: Request) -> dict[str, Any]:
            wanted = request.json() if request.method == "POST" else None
            rule = wanted.get("rule") if isinstance(wanted, dict) else None
            if rule not in RULES:
                raise Refused(400, "unknown-rule", "There is no such rule", f'POST {{"rule": R}}, where R is one of {", ".join(RULES)}')
            self.silenced.add(rule)
            report("silenced", rule=rule)
            return {"silenced": sorted(self.silenced)}

        @handlers.on_any("rules")
        def rules(_: Request) -> dict[str, Any]:
            return {"rules": RULES}

        return handlers


async def run(client: Client, port: int) -> None:
    monitor = Monitor()

    def changed(change: SlotChange) -> None:
        report("rebalanced", gained=len(change.gained), lost=len(change.lost), rules=change.keys_owned)

    def ended(ended: LeaseEnded) -> None:
        report("lease_ended", why=ended.why)

    async with RequestServer(monitor.handlers(), port=port) as server, client.lease(ttl=2.0, on_ended=ended) as lease:
        report("listening", url=server.url)
        lease.on_rebalance(changed, RULES)
        # An error that does not pass, such as a wrong token, ends the run.
        await lease.run_owned(RULES, monitor.evaluate).wait()


async def silence(client: Client, instance: str, rule: str) -> None:
    report("answered", by=instance, answer=(await client.instance(instance, "silence", method="POST", json={"rule": rule})).json())


async def status(client: Client, *instances: str) -> None:
    # One that is dead and still has a record does not answer; the others do.
    for instance in instances or [member["instance_id"] for member in (await client.members())["members"]]:
        try:
            report("answered", by=instance, answer=(await client.instance(instance, "status")).json())
        except ShardwiseError as error:
            report("unanswered", by=instance, why=str(error))


async def rules(client: Client) -> None:
    answer = await client.any("rules")
    report("answered", by=answer.instance, answer=answer.json())


# What follows the URL: the fewest arguments, and the most.
ARGUMENTS = {"run": (1, 1), "silence": (2, 2), "status": (0, 1), "rules": (0, 0)}
USAGE = "usage: python alert_monitor.py run POLICY URL PORT | silence POLICY URL INSTANCE RULE | status POLICY URL [INSTANCE] | rules POLICY URL"


async def main() -> None:
    given = sys.argv[1:]
    least, most = ARGUMENTS.get(given[0] if given else "", (1, 0))
    if not least <= len(given) - 3 <= most:
        sys.exit(USAGE)
    verb, policy, url, *rest = given
    async with Client(policy, url, token=os.environ.get("SHARDWISE_TOKEN")) as client:
        if verb != "run":
            verbs: dict[str, Callable[..., Awaitable[None]]] = {"silence": silence, "status": status, "rules": rules}
            await verbs[verb](client, *rest)
            return
        running = asyncio.ensure_future(run(client, int(rest[0])))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, running.cancel)
        with suppress(asyncio.CancelledError):
            await running
        report("left")


if __name__ == "__main__":
    asyncio.run(main())
