"""How long `lease.owned` of many keys takes, beside uhashring in the same run: `python benches/owned.py [KEYS]`.

`owned` keeps the slots of recent keys, so the first question of a key costs more than the next ones; both are measured. uhashring is asked for the
node of each key. Prints JSON. The target: p50 of at most 5 ms for 10,000 keys, and at least 3 times as fast as uhashring.
`cargo xtask bench leases` runs it and judges its figures.
"""

import json
import os
import statistics
import sys
import time
from typing import Any, Callable, Optional

from shardwise_client._holdings import Holdings
from shardwise_client._slots import HASHED_BY

SLOTS, MEMBERS, ROUNDS = 16_384, 3, 200
TTL = 60.0


def held() -> Holdings:
    """What one of the members holds: every third slot."""
    holdings = Holdings()
    grants = [{"grant": n, "slot": n, "name": None, "epoch": 1, "period": None, "finish": False} for n in range(0, SLOTS, MEMBERS)]
    line = {"type": "all", "version": 1, "valid_ms": int(TTL * 1000), "slots": SLOTS, "grants": grants}
    table = holdings.begin(TTL)
    holdings.changed(table.whole(line, holdings.clock()))
    return holdings


def p50_ms(question: Callable[[], object], rounds: int, before: Callable[[], object] = lambda: None) -> float:
    took = []
    for _ in range(rounds):
        before()
        begun = time.perf_counter()
        question()
        took.append(time.perf_counter() - begun)
    return statistics.median(took) * 1000


def uhashring_of(keys: list[str]) -> Optional[tuple[Callable[[], object], str]]:
    try:
        import uhashring
    except ImportError:
        return None
    ring: Any = uhashring.HashRing(nodes=[f"worker-{n}" for n in range(MEMBERS)])
    return lambda: [key for key in keys if ring.get_node(key) == "worker-0"], str(getattr(uhashring, "__version__", "unknown"))


def print_figure(figure: dict[str, object]) -> None:
    """Prints it, and appends it to the file of `cargo xtask bench leases`."""
    line = json.dumps(figure)
    print(line)
    path = os.environ.get("SHARDWISE_LEASES_FIGURES")
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(line + "\n")


def main() -> None:
    keys = [f"tenant-{n}" for n in range(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)]
    holdings = held()
    table = holdings.table
    assert table is not None
    first = p50_ms(lambda: holdings.owned(keys), ROUNDS // 10, table.keys.clear)
    again = p50_ms(lambda: holdings.owned(keys), ROUNDS)
    result: dict[str, object] = {"figure": "owned", "keys": len(keys), "hashed_by": HASHED_BY}
    result |= {"first_p50_ms": round(first, 3), "p50_ms": round(again, 3), "owned": len(holdings.owned(keys))}
    other = uhashring_of(keys)
    if other is None:
        print_figure({**result, "missing": "uhashring: pip install uhashring"})
        sys.exit(1)
    question, version = other
    theirs = p50_ms(question, ROUNDS // 10)
    result |= {"uhashring": version, "uhashring_p50_ms": round(theirs, 3), "ratio": round(theirs / again, 2), "first_ratio": round(theirs / first, 2)}
    print_figure(result)


if __name__ == "__main__":
    main()
