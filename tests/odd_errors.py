"""Exceptions that cannot be shown, asked or sent as others can."""


class Odd(Exception):
    """What the others derive from."""


class Unattributable(Odd):
    def __getattr__(self, name):
        raise KeyError(name)


class RaisingNotes(Odd):
    @property
    def __notes__(self):
        raise RuntimeError("no notes")


class RaisingText(Odd):
    def __str__(self):
        raise ZeroDivisionError

    __repr__ = __str__


class RaisingTruth(Odd):
    def __bool__(self):
        raise ValueError("neither true nor false")


class Leaving(Odd):
    def __str__(self):
        raise SystemExit(3)


class NoPickle(Odd):
    def __reduce__(self):
        raise TypeError("cannot be pickled")


class Text(str):
    def __reduce__(self):
        raise TypeError("cannot be pickled")


class SubclassedText(Odd):
    def __str__(self):
        return Text("shown")


class Meta(type):
    def __getattribute__(cls, name):
        raise OSError(name)


class OddType(Odd, metaclass=Meta):
    pass


def odd_syntax_error():
    return SyntaxError("odd", ("file", "line 1", "offset", "text", "end", None))
