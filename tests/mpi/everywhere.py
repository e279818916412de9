"""How calls end, and what must be the same on all ranks."""


def outcome(function, /, *args, **kwargs):
    """The exception that a call raises, or None."""
    try:
        function(*args, **kwargs)
    except BaseException as error:
        return error


def raised(kind, function, /, *args, **kwargs):
    """The exception that a call raises: of this class, or one of these, and of none derived from it."""
    error = outcome(function, *args, **kwargs)
    if type(error) not in (kind if isinstance(kind, tuple) else (kind,)):
        raise AssertionError(f"expected {kind}, received {error!r}") from error
    return error


def same_everywhere(comm, value):
    values = comm.allgather(value)
    assert all(other == values[0] for other in values), values


def same_error(comm, error, kind, *texts):
    """Every rank has this exception, of this class, with the same words; all texts are in them."""
    if type(error) is not kind:
        raise AssertionError(f"expected {kind}, received {error!r}") from error
    same_everywhere(comm, str(error))
    for text in texts:
        assert text in str(error), error


def raises_everywhere(comm, kind, text, function, /, *args, **kwargs):
    """The exception of this class that all ranks raise, with the same words; `text`, or all of several, is in them."""
    error = outcome(function, *args, **kwargs)
    same_error(comm, error, kind, *((text,) if isinstance(text, str) else text))
    return error
