"""XXH3 in its 64-bit variant with seed 0, in pure Python: rule 1 of docs/reference/placement.md. The vectors of the repository check it."""

from struct import Struct

_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_M32, _M64 = 2**32 - 1, 2**64 - 1
_PRIME32_1, _PRIME32_2, _PRIME32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_PRIME64_1, _PRIME64_2, _PRIME64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_PRIME64_4, _PRIME64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_MIX, _RRMXMX = 0x165667919E3779F9, 0x9FB21C651E98DF25
_BLOCK, _STRIPE = 1024, 64

_pair, _eight = Struct("<QQ").unpack_from, Struct("<8Q").unpack_from
_int = int.from_bytes


def _word(at: int) -> int:
    return _int(_SECRET[at : at + 8], "little")


_EMPTY = _word(56) ^ _word(64)
_FLIP_1_3 = (_word(0) ^ (_word(0) >> 32)) & _M32
_FLIP_4_8 = _word(8) ^ _word(16)
_FLIP_LOW, _FLIP_HIGH = _word(24) ^ _word(32), _word(40) ^ _word(48)
_FLIP_LOW_SWAPPED = _int(_FLIP_LOW.to_bytes(8, "little"), "big")
_STRIPE_KEYS = [_eight(_SECRET, 8 * n) for n in range(16)]
_SCRAMBLE_KEYS, _LAST_KEYS, _MERGE_KEYS = _eight(_SECRET, 128), _eight(_SECRET, 121), _eight(_SECRET, 11)


def xxh3_64(data: bytes) -> int:
    """The hash of these bytes, from 0 to 2^64 - 1."""
    length = len(data)
    if 8 < length <= 16:
        head = data[:8]
        high = _int(data[-8:], "little") ^ _FLIP_HIGH
        product = (_int(head, "little") ^ _FLIP_LOW) * high
        value = (length + (_int(head, "big") ^ _FLIP_LOW_SWAPPED) + high + ((product & _M64) ^ (product >> 64))) & _M64
        value = (value ^ (value >> 37)) * _MIX & _M64
        return value ^ (value >> 32)
    if 4 <= length <= 8:
        value = (_int(data[-4:], "little") + (_int(data[:4], "little") << 32)) ^ _FLIP_4_8
        value ^= (value << 49 | value >> 15) & _M64 ^ (value << 24 | value >> 40) & _M64
        value = value * _RRMXMX & _M64
        value = (value ^ (value >> 35) + length) * _RRMXMX & _M64
        return value ^ (value >> 28)
    if length < 4:
        return _short(data)
    if length <= 128:
        return _middle(data, length)
    return _over_128(data, length) if length <= 240 else _long(data, length)


def _short(data: bytes) -> int:
    length = len(data)
    value = (data[0] << 16 | data[length >> 1] << 24 | data[-1] | length << 8) ^ _FLIP_1_3 if length else _EMPTY
    value = (value ^ (value >> 33)) * _PRIME64_2 & _M64
    value = (value ^ (value >> 29)) * _PRIME64_3 & _M64
    return value ^ (value >> 32)


def _avalanche(value: int) -> int:
    value = ((value & _M64) ^ ((value & _M64) >> 37)) * _MIX & _M64
    return value ^ (value >> 32)


def _mixed(data: bytes, at: int, secret: int) -> int:
    """Sixteen bytes, mixed with sixteen of the secret."""
    (one, other), (key, other_key) = _pair(data, at), _pair(_SECRET, secret)
    product = (one ^ key) * (other ^ other_key)
    return int((product & _M64) ^ (product >> 64))


def _middle(data: bytes, length: int) -> int:
    """17 to 128 bytes: pairs of sixteen bytes from both ends."""
    pairs = (length + 31) // 32
    value = length * _PRIME64_1
    for n in range(pairs):
        value += _mixed(data, 16 * n, 32 * n) + _mixed(data, length - 16 * (n + 1), 32 * n + 16)
    return _avalanche(value)


def _over_128(data: bytes, length: int) -> int:
    """129 to 240 bytes."""
    value = _avalanche(length * _PRIME64_1 + sum(_mixed(data, 16 * n, 16 * n) for n in range(8)))
    value += sum(_mixed(data, 16 * n, 16 * (n - 8) + 3) for n in range(8, length // 16))
    return _avalanche(value + _mixed(data, length - 16, 119))


def _long(data: bytes, length: int) -> int:
    """More than 240 bytes: stripes of 64 bytes in blocks of sixteen."""
    lanes = [_PRIME32_3, _PRIME64_1, _PRIME64_2, _PRIME64_3, _PRIME64_4, _PRIME32_2, _PRIME64_5, _PRIME32_1]
    for at in range(0, (length - 1) // _STRIPE * _STRIPE, _STRIPE):
        _stripe(lanes, data, at, _STRIPE_KEYS[at % _BLOCK // _STRIPE])
        if at % _BLOCK == _BLOCK - _STRIPE:
            for n, key in enumerate(_SCRAMBLE_KEYS):
                lanes[n] = (lanes[n] ^ (lanes[n] >> 47) ^ key) * _PRIME32_1 & _M64
    _stripe(lanes, data, length - _STRIPE, _LAST_KEYS)
    value = length * _PRIME64_1
    for n in range(0, 8, 2):
        product = (lanes[n] ^ _MERGE_KEYS[n]) * (lanes[n + 1] ^ _MERGE_KEYS[n + 1])
        value += (product & _M64) ^ (product >> 64)
    return _avalanche(value)


def _stripe(lanes: list[int], data: bytes, at: int, keys: tuple[int, ...]) -> None:
    for n, word in enumerate(_eight(data, at)):
        mixed = word ^ keys[n]
        lanes[n ^ 1] = (lanes[n ^ 1] + word) & _M64
        lanes[n] = (lanes[n] + (mixed & _M32) * (mixed >> 32)) & _M64
