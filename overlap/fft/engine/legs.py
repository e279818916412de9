"""Half a transform of a few planes: a local sweep, the exchange, the other local sweep.

A leg owns nothing: it is a set of views of one slot's buffers for a given number of planes, made at
planning. `load` is done before the exchange, `store` after it; both are given the kernels of the
worker that runs them.
"""


class ForwardLeg:
    """From real space to the spectrum: rows, exchange, columns.

    Without `receive`, the leg is aimed at the plane of the result before each use.
    """

    def __init__(self, exchange, send, receive, rank):
        self.exchange = exchange
        self._rank = rank
        self._send = send[:exchange.by_columns.size]
        sent = exchange.by_columns.views(send)
        planes = range(exchange.planes)
        self._pack = [[piece[j] for piece in sent] for j in planes]
        if receive is not None:
            self._receive = receive[:exchange.by_rows.size]
            received = exchange.by_rows.views(receive)
            self._unpack = [[piece[j] for piece in received] for j in planes]
            for j in planes:
                self._pack[j][rank] = self._unpack[j][rank]

    def aim(self, spectrum, own_rows):
        """Receive the only plane where its result goes: contiguous, in natural order."""
        self._receive = spectrum.reshape(-1)
        self._pack[0][self._rank] = spectrum[own_rows]
        self._unpack = [None]

    def load(self, kernels, j, real, scale):
        kernels.rows_forward.forward(real, self._pack[j], scale)

    def exchanged(self, comm):
        return self.exchange.forward(comm, self._send, self._receive)

    def store(self, kernels, j, spectrum, in_place):
        kernels.columns_forward.forward(self._unpack[j], spectrum, in_place)


class BackwardLeg:
    """From the spectrum to real space: columns, exchange, rows."""

    def __init__(self, exchange, send, receive, rank):
        self.exchange = exchange
        self._send = send[:exchange.by_rows.size]
        self._receive = receive[:exchange.by_columns.size]
        sent = exchange.by_rows.views(send)
        received = exchange.by_columns.views(receive)
        planes = range(exchange.planes)
        self._pack = [[piece[j] for piece in sent] for j in planes]
        self._unpack = [[piece[j] for piece in received] for j in planes]
        self._plane = None
        if exchange.planes == 1:
            # Its pieces are its rows in order: it can be transformed where it is sent from.
            self._plane = self._send.reshape(exchange.plane_by_rows)
            self._unpack[0][rank] = self._pack[0][rank]
        else:
            for j in planes:
                self._pack[j][rank] = self._unpack[j][rank]

    def load(self, kernels, j, spectrum):
        if self._plane is not None:
            kernels.columns_backward.backward_in(self._plane, spectrum)
        else:
            kernels.columns_backward.backward(spectrum, self._pack[j])

    def exchanged(self, comm):
        return self.exchange.backward(comm, self._send, self._receive)

    def store(self, kernels, j, real, scale):
        kernels.rows_backward.backward(self._unpack[j], real, scale)
