"""Hashes and slots against the vectors of the repository."""

import random
import time
import unittest
from pathlib import Path
from typing import Callable

from shardwise_client import ShardwiseError
from shardwise_client._holdings import Holdings
from shardwise_client._slots import KeySlots, list_of, slot_of, texts_of
from shardwise_client._xxh3 import xxh3_64

VECTORS = Path(__file__).resolve().parents[3] / "crates" / "core" / "testdata" / "hashes.txt"


def quoted(text: str) -> str:
    return text[text.index('"') + 1 : text.rindex('"')]


def key_bytes(text: str) -> bytes:
    kind, _, value = text.partition(" ")
    if kind == "text":
        return quoted(value).encode()
    if kind == "bytes":
        return bytes.fromhex(value)
    if kind == "counting":
        return bytes(i % 251 for i in range(int(value)))
    return int(value).to_bytes(int(kind[1:]) // 8, "big", signed=kind[0] == "i")


class Slots(unittest.TestCase):
    def test_the_vectors(self) -> None:
        asked = dict.fromkeys(("hash", "slot", "slot-of-hash"), 0)
        for line in VECTORS.read_text(encoding="utf-8").split("\n"):
            question, arrow, answer = line.rpartition(" => ")
            verb, _, rest = question.partition(" ")
            if not arrow or verb not in asked:
                continue
            asked[verb] += 1
            if verb == "hash":
                self.assertEqual(f"{xxh3_64(key_bytes(rest)):016x}", answer, line)
                continue
            what, _, slots = rest.rpartition(" of ")
            hash_ = int(what, 16) if verb == "slot-of-hash" else xxh3_64(key_bytes(what))
            self.assertEqual(slot_of(hash_, int(slots)), int(answer), line)
            if verb == "slot" and what.startswith("text"):
                key_slots = KeySlots(int(slots))
                self.assertEqual([key_slots[quoted(what)] for _ in range(2)], [int(answer)] * 2, line)
        self.assertTrue(all(asked.values()), asked)

    def test_native_and_pure_hashes_are_the_same(self) -> None:
        try:
            from xxhash import xxh3_64_intdigest
        except ImportError:
            self.skipTest("the package xxhash is not installed")
        for length in [*range(520), 1023, 1024, 1025, 2048, 2049, 10_000]:
            data = random.Random(length).randbytes(length)
            self.assertEqual(xxh3_64(data), xxh3_64_intdigest(data), length)

    def test_what_is_kept_changes_nothing_and_has_a_limit(self) -> None:
        slots, chosen = KeySlots(16_384), bytearray(n % 2 for n in range(16_384))
        keys = [f"tenant-{n}" for n in range(5_000)] + ["", "größe", "k" * 5_000]
        expected = [key for key in keys if slot_of(xxh3_64(key.encode()), 16_384) % 2]
        self.assertEqual([slots.select(keys, chosen) for _ in range(2)], [expected, expected])
        self.assertEqual(len(slots), len(keys) - 1, "a long key is not kept")
        mixed = [key for pair in zip(keys, (f"customer-{n}" for n in range(5_000))) for key in pair]
        expected = [key for key in mixed if slot_of(xxh3_64(key.encode()), 16_384) % 2]
        self.assertEqual([slots.select(mixed, chosen) for _ in range(2)], [expected, expected], "every second key is known")
        for first in (0, 100_000):
            slots.select([str(n) for n in range(first, first + 140_000)], chosen)
            self.assertLessEqual(len(slots), 131_072)
        self.assertEqual(KeySlots(1).select(["a", "b"], b"\1"), ["a", "b"])
        self.assertEqual(KeySlots(8).select([], bytes(8)), [])

    def test_what_is_no_list_of_texts_is_an_error(self) -> None:
        for keys in ("tenant-7", b"tenant-7"):
            with self.assertRaisesRegex(TypeError, r"\[key\]"):
                list_of(keys)  # type: ignore[arg-type]
        for key in (7, b"a", None):
            with self.assertRaises(TypeError):
                texts_of([key])  # type: ignore[list-item]
            with self.assertRaises(TypeError):
                KeySlots(8)[key]  # type: ignore[index]
        for key in (7, b"a", None, b"a" * 70_000):
            with self.assertRaisesRegex(TypeError, "a key is a text"):
                KeySlots(8).select(["a", key], bytes(8))  # type: ignore[list-item]
        self.assertEqual(list_of(key for key in "ab"), ["a", "b"])

    def test_a_key_has_at_most_65536_bytes(self) -> None:
        slots, holdings = KeySlots(8), Holdings()
        holdings.begin(5.0).keys = slots
        for letter, bytes_ in (("k", 1), ("ß", 2), ("\u2028", 3), ("\U0001f4a1", 4)):
            longest = letter * (65_536 // bytes_)
            self.assertEqual(slots.select(["a", longest], b"\1" * 8), ["a", longest])
            self.assertEqual((texts_of([longest]), holdings.slot(longest)), ([longest], slots[longest]))
            takers: list[Callable[[str], object]] = [slots.__getitem__, holdings.slot]
            takers += [lambda key: slots.select(["a", key], bytes(8)), lambda key: texts_of(["a", key])]
            for take in takers:
                with self.assertRaisesRegex(ShardwiseError, "65,536 bytes"):
                    take(longest + letter)
        self.assertEqual(list(slots), ["a"])

    def test_ten_thousand_keys_take_milliseconds(self) -> None:
        slots, chosen, keys = KeySlots(16_384), bytearray(16_384), [f"tenant-{n}" for n in range(10_000)]
        slots.select(keys, chosen)
        took = []
        for _ in range(20):
            # Of this thread alone: the machine may run others meanwhile.
            begun = time.thread_time()
            slots.select(keys, chosen)
            took.append(time.thread_time() - begun)
        # The target is 5 ms p50, which the benchmark measures; a busy machine may be slower.
        self.assertLess(sorted(took)[10], 0.05)
