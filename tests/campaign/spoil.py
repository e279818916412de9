"""Damage that a disk, a copy or a hand can do to a file."""


def spoilt(drawn, content):
    """The content with a flipped bit, cut off, with bytes too many or too few, or with a part overwritten."""
    data, at = bytearray(content), int(drawn.integers(len(content)))
    how = drawn.integers(5)
    if how == 0:
        data[at] ^= 1 << int(drawn.integers(8))
    elif how == 1:
        del data[at:]
    elif how == 2:
        data[at:at] = drawn.bytes(int(drawn.integers(1, 30)))
    elif how == 3:
        data[at : at + 64] = drawn.bytes(64)
    else:
        del data[at : at + int(drawn.integers(1, 30))]
    return bytes(data)
