"""What must be the same on all ranks."""


def raises_everywhere(comm, kind, text, function):
    """Every rank raises an exception of this kind, with this text, and with the same words."""
    try:
        function()
    except kind as error:
        found = str(error)
        assert text in found, found
    else:
        raise AssertionError(f"expected {kind.__name__}: {text}")
    assert len(set(comm.allgather(found))) == 1, comm.allgather(found)
