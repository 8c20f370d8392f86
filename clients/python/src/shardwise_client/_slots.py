"""From a key to its slot: rules 1 and 2 of docs/reference/placement.md. The hash is XXH3 of the key's UTF-8.

The package `xxhash` makes it faster where it is installed (`pip install shardwise-client[fast]`). The slots of recent keys are kept, as a worker
usually asks for the same keys again and again.
"""

from collections.abc import Iterable
from itertools import compress, islice
from typing import Callable, Optional, Union, cast

from ._errors import ShardwiseError
from ._xxh3 import xxh3_64


def _fastest() -> tuple[Callable[[bytes], int], str]:
    try:
        from xxhash import xxh3_64_intdigest
    except ImportError:
        return xxh3_64, "Python"
    return xxh3_64_intdigest, "xxhash"


_hash, HASHED_BY = _fastest()

# Beyond this many keys the memory of earlier ones is dropped; a longer key is not kept. Together at most some 40 MB.
_KEPT_KEYS, _KEPT_LENGTH = 131_072, 128
# The most bytes of a key in UTF-8, here and in the sidecar. A character has at most four.
_KEY_BYTES_MAX, _CHARACTER_BYTES_MAX = 65_536, 4


def hash_of(key: str) -> int:
    """The hash of a key, from 0 to 2^64 - 1."""
    return _hash(key.encode())


def slot_of(hash_: int, slots: int) -> int:
    """The slot of a hash, of that many slots."""
    return hash_ * slots >> 64


def list_of(keys: Iterable[str]) -> list[str]:
    """The keys as a list. A text is refused: its characters are hardly the keys that were meant."""
    if isinstance(keys, (str, bytes)):
        raise TypeError(f"keys are a list or another iterable of texts, not one {type(keys).__name__}: write [key]")
    return keys if isinstance(keys, list) else list(keys)


def texts_of(keys: Iterable[str]) -> list[str]:
    """The same, where each key is checked to be a text that is not too long."""
    texts = list_of(keys)
    for key in texts:
        if not isinstance(key, str):
            raise TypeError(f"a key is a text, not {type(key).__name__}: {key!r:.80}")
    _check_lengths(texts, max(map(len, texts), default=0))
    return texts


def _check_lengths(keys: list[str], longest: int) -> None:
    """Refuses keys that are too long; the longest has that many characters. Most lists have none that must be measured."""
    if longest * _CHARACTER_BYTES_MAX > _KEY_BYTES_MAX:
        for key in keys:
            if len(key) * _CHARACTER_BYTES_MAX > _KEY_BYTES_MAX and len(str.encode(key)) > _KEY_BYTES_MAX:
                raise ShardwiseError(f"a key has at most {_KEY_BYTES_MAX:,} bytes in UTF-8: {key!r:.80}")


class KeySlots(dict[str, int]):
    """The slot of each key, of that many slots. It is computed when it is first asked for."""

    def __init__(self, slots: int) -> None:
        super().__init__()
        self.slots = slots
        # For a power of two the slot is the head of the hash, and small numbers are faster than large ones.
        self._shift = 65 - slots.bit_length() if slots & (slots - 1) == 0 else 0

    def __missing__(self, key: str) -> int:
        return self._computed([key])[0]

    def select(self, keys: list[str], chosen: Union[bytes, bytearray]) -> list[str]:
        """Those of the keys whose slot has a 1 in `chosen`, in their order."""
        # The interpreter takes no step for a key whose slot is known, and few for another: this decides how long a long list takes.
        known = list(map(self.get, keys))
        slots = cast("list[int]", known) if None not in known else self._completed(keys, known)
        return list(compress(keys, map(chosen.__getitem__, slots)))

    def _completed(self, keys: list[str], known: list[Optional[int]]) -> list[int]:
        new = [key for key, slot in zip(keys, known) if slot is None]
        computed = self._computed(new)
        if len(new) == len(keys):
            return computed
        rest = iter(computed)
        return [next(rest) if slot is None else slot for slot in known]

    def _computed(self, keys: list[str]) -> list[int]:
        hashes, shift = map(_hash, map(str.encode, keys)), self._shift
        try:
            longest = max(map(len, keys))
            _check_lengths(keys, longest)
            slots = [hashed >> shift for hashed in hashes] if shift else [slot_of(hashed, self.slots) for hashed in hashes]
        except TypeError:
            # It says which key is not text.
            texts_of(keys)
            raise
        self._keep(keys, slots, longest)
        return slots

    def _keep(self, keys: list[str], slots: list[int], longest: int) -> None:
        pairs: Iterable[tuple[str, int]] = zip(keys, slots)
        if longest > _KEPT_LENGTH:
            pairs = (pair for pair in pairs if len(pair[0]) <= _KEPT_LENGTH)
        if len(self) + len(keys) > _KEPT_KEYS:
            self.clear()
        self.update(islice(pairs, _KEPT_KEYS))
