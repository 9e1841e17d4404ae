"""The one exchange: rows travel from the ranks that hold them to the ranks that need them, and their gradients back.

A route says which rows of its sources go to each rank, and where in its targets the rows from each rank land::

    rank 0                                                        rank 1
    sources[0], rows 3 1 4    ---- message: [3, columns] ---->    targets[0], rows 0 2 5
    its gradient, rows 3 1 4  <-------- [3, columns] ---------    gradient of targets[0], rows 0 2 5

A message is a list of blocks, each some rows and columns of one source; columns of a block land in some rows and
columns of a target, copied or added. So a feature fetch is a block of listed rows, a pooled lookup a block of
neighbouring rows and columns for each kernel call, or of tables that are cut by rows one of listed vectors, a sequence
lookup a block for each table. What a rank has for itself lands without a message. Where a block is memory that can be
sent as it stands, nothing is copied.

`Route.start` posts the messages and waits for nothing, so that several transfers may be under way; `Transfer.finish`
lands what came. Where a transfer is differentiable these two are nodes of the autograd graph::

    forward     sources --> send -- token --> receive --> targets
    backward    gradients of sources <-- send <-- token -- receive <-- gradients of targets
                             waits                           posts

The engine runs the node that was made last first: what was computed between the two stages is differentiated between
them too, while gradients travel.

What of a transfer is known before the rest may have gone ahead (`Early`): both land as one, and gradients come back as
one.

Several transfers may share sources, each with rows for another backward pass. Their gradients land in one memory, and
only the last one waits, for those of all: gradients of the others travel while the next ones are computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch
from torch import Tensor

from windrow.comm.errors import RecipeError
from windrow.comm.rows import Runs, move_columns, move_rows, move_vectors
from windrow.comm.wire import Codec, Messages, Shape, Wire

if TYPE_CHECKING:
    from windrow.comm.transfer import Pending

__all__ = ["Block", "Early", "Landing", "Route", "RowSource", "Rows", "Transfer"]

Range: TypeAlias = tuple[int, int]
Rows: TypeAlias = slice | Tensor
"""start:stop, or int64 [n] on the CPU."""


class RowSource(Protocol):
    """Rows that are gathered by a method of their own, since they are not all on one device."""

    @property
    def row_shape(self) -> torch.Size:
        """Shape of one row."""

    def gather(self, positions: Tensor, *, out: Tensor) -> None:
        """Copy the rows at `positions` (int64 on the CPU) into `out` (contiguous, maybe of another dtype)."""

    def move(self, positions: Tensor, out: Tensor, places: Tensor) -> None:
        """Copy row ``positions[i]`` to ``out[places[i]]``; both int64 on the CPU."""


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows and columns of one matrix of several."""

    matrix: int
    """Which one."""
    rows: Rows
    columns: Range | None = None
    """First column and the one after the last; None: whole rows, of whatever shape."""

    @property
    def num_rows(self) -> int:
        """How many."""
        rows = self.rows
        return rows.stop - rows.start if isinstance(rows, slice) else len(rows)


@dataclass(frozen=True, slots=True)
class Landing:
    """Where a block that arrives belongs."""

    block: int
    """Place in the message."""
    target: Block
    """As many rows as the block has, and, without `runs` or `add`, columns."""
    runs: Runs | None = None
    """Which columns of the block are copied to which of the target; rows are neighbours then. None: all, as they
    stand."""
    add: bool = False
    """Whether each row of the block is added to neighbouring numbers of a row of the matrix. `rows` of the target are
    places in the matrix then, row times columns + first column; no two may overlap."""


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """Which rows go to each rank, and where what comes from each rank belongs."""

    wire: Wire
    """How they travel."""
    outgoing: Sequence[Sequence[Block]]
    """For each rank the blocks of the sources that go there, itself included. One more entry, if given: blocks of what
    `Transfer.finish` gets as ``local``, which land here as well."""
    landings: Sequence[Sequence[Landing]]
    """For each entry of `outgoing` of the other end, where it lands here: rank p's blocks for this rank."""
    arriving: Sequence[Sequence[Shape]]
    """For each rank the shapes of the blocks that come from it; none of this rank's own."""

    @classmethod
    def of_rows(
        cls, wire: Wire, positions: Sequence[Rows], places: Sequence[Rows], row_shape: Sequence[int]
    ) -> "Route":
        """Whole rows of one source to places of one target.

        For each rank positions among the rows of the source that go there, and where its own rows belong, no
        two of them in the same place.
        """
        targets = [Block(0, rows) for rows in places]
        return cls(
            wire,
            [[Block(0, rows)] for rows in positions],
            [[Landing(0, target)] for target in targets],
            [[(target.num_rows, *row_shape)] for target in targets],
        )

    def start(
        self,
        sources: Sequence[Tensor | RowSource],
        *,
        into: Sequence[Tensor] = (),
        differentiable: bool = False,
        after: "Transfer | None" = None,
        is_last: bool = True,
        early: "Early | None" = None,
    ) -> "Transfer":
        """Post the messages. Collective; does not wait.

        Args:
            sources: matrices of the wire's dtype; must not change until `Transfer.finish`.
            into: the targets, if they are there already and no landing has runs or adds: what can be received in place
                is, and what this rank has for itself lands at once.
            differentiable: whether the backward pass goes through it: then sources are tensors, each element of which
                goes to one rank at most (the gradient of what goes nowhere is undefined), and every rank runs one
                backward pass through each transfer, in the same order.
            after: the transfer of the same sources before it, if there is one.
            is_last: whether no other one of the same sources comes after it; the sources get the gradients of all in
                its backward pass.
            early: what has gone ahead; must agree.

        Returns:
            The transfer; finish it.

        Raises:
            ValueError: a landing has runs or adds, rank after rank, so nothing may land before `finish`.
        """
        if into and any(landing.runs is not None or landing.add for of_rank in self.landings for landing in of_rank):
            raise ValueError("rows that are added, or copied by runs, cannot land at once: give the targets to finish")
        self.wire.wake()
        transfer = Transfer(self, after, is_last=is_last, early=early)
        if differentiable and torch.is_grad_enabled():
            # Nothing that is differentiated need go out: a rank may hold no table.
            anchor = torch.empty(0, requires_grad=True)
            if not is_last:
                sources = [source.detach() for source in sources if isinstance(source, Tensor)]
            transfer.token = _Send.apply(transfer, anchor, *sources)  # type: ignore[no-untyped-call]
        else:
            transfer.post(sources, into)
            if into:
                transfer.land_own(into)
        return transfer


@dataclass(frozen=True, slots=True)
class Early:
    """What of a route's messages has gone ahead."""

    transfer: "Transfer"
    """Without gradients; of a route for the same targets, with as many blocks as `rest`."""
    rest: Route
    """What is still to go. Rows that a rank has for itself are of neither."""


class Transfer:
    """One use of a route; made by `Route.start`."""

    def __init__(
        self, route: Route, after: "Transfer | None" = None, *, is_last: bool = True, early: Early | None = None
    ) -> None:
        self.token: Tensor | None = None
        """Node of the autograd graph between sending and receiving; None where nothing is differentiated."""
        self.is_last = is_last
        """Of the transfers of the same sources."""
        self._route = route
        self._sent_route = route if early is None else early.rest
        self._early = None if early is None else early.transfer
        self._wire = route.wire
        self._rank = route.wire.world.rank
        self._sources: Sequence[Tensor | RowSource] = ()
        self._source_shapes: list[torch.Size] = []
        self._own_landed = False
        self._after = after
        self.has_sent_back = False
        """Whether gradients are on their way."""
        self.gradients: list[Tensor] = []
        """Of the sources, while they come back; those of transfers of the same sources share them."""

    def post(self, sources: Sequence[Tensor | RowSource], into: Sequence[Tensor] = ()) -> None:
        """Pack and send what goes out, and expect what comes in."""
        route = self._sent_route
        wire, codec = route.wire, route.wire.codec
        self._sources = sources
        self._source_shapes = [source.shape for source in sources if isinstance(source, Tensor)]
        size = wire.world.size
        outgoing = route.outgoing[:size]
        self._block_shapes = _block_shapes(self._route.outgoing[:size], sources)
        shapes = self._block_shapes if route is self._route else _block_shapes(outgoing, sources)
        sent = Messages(wire, codec, shapes, _ready(wire, codec, outgoing, sources), sent=True)
        for blocks, packed, packing in zip(outgoing, sent.blocks, sent.packings, strict=True):
            # None are packed for this rank, nor where they are sent from where they stand.
            for number, (block, memory) in enumerate(zip(blocks, packed, strict=False)):
                if packing is None:
                    _copy(sources[block.matrix], block, memory)
                else:
                    packing.pack(number, _gathered(sources[block.matrix], block), memory)
        wanted = [[landing.target for landing in landings] for landings in route.landings[:size]] if into else []
        received = Messages(wire, codec, route.arriving, _ready(wire, codec, wanted, into), sent=False)
        self._post(sent, received, stage=wire.rows_stage)

    def land_own(self, targets: Sequence[Tensor]) -> None:
        """Land what this rank has for itself."""
        rank = self._rank
        _land_directly(self._route.outgoing[rank], self._route.landings[rank], self._sources, targets)
        self._own_landed = True

    def finish(self, targets: Sequence[Tensor], local: Sequence[Tensor] = ()) -> tuple[Tensor, ...]:
        """Wait for the messages and land them. Collective; once.

        Args:
            targets: matrices to land in, of a dtype that rows convert to. Where the transfer is differentiable they
                are new memory that the results take over.
            local: matrices of this rank that the last entry of the route's `outgoing` takes its blocks from.

        Returns:
            The targets; differentiable towards sources and `local` where that was asked for.

        Raises:
            DeadlineError: a rank did not come in time.
        """
        if self.token is None:
            self.land(targets, local)
            return tuple(targets)
        landed: tuple[Tensor, ...] = _Receive.apply(  # type: ignore[no-untyped-call]  # torch does not annotate it
            self, list(targets), self.token, *local
        )
        return landed

    def land(self, targets: Sequence[Tensor], local: Sequence[Tensor]) -> None:
        """Wait for the messages and land them, rank by rank, so that sums do not depend on timing.

        Local matrices land before: what is copied of them is there when rows are added to it.
        """
        route, size = self._route, self._wire.world.size
        if len(route.landings) > size:
            _land_directly(route.outgoing[size], route.landings[size], local, targets)
        parts = [self] if self._early is None else [self._early, self]
        for part in parts:
            part.wait()
        for peer in range(size):
            if peer == self._rank:
                if not self._own_landed:
                    self.land_own(targets)
            else:
                # Block by block, so that sums do not depend on what came early, either.
                for number in range(len(self._sent_route.landings[peer])):
                    for part in parts:
                        part.land_block(peer, number, targets)
        for part in parts:
            part.release(targets[0].device if targets else None)
        self._early = None

    def wait(self) -> None:
        """Wait for the messages."""
        self._pending.wait()
        self._received.open()

    def land_block(self, peer: int, number: int, targets: Sequence[Tensor]) -> None:
        """Land one of the blocks that have come from another rank."""
        route, received = self._sent_route, self._received
        if received.blocks[peer]:
            landing = route.landings[peer][number]
            shape = route.arriving[peer][landing.block]
            self._land_arrived(received, peer, landing, targets[landing.target.matrix], shape)

    def release(self, read_by: torch.device | None = None) -> None:
        """Give back what was sent and received, which `read_by`, a GPU, may still be reading."""
        self._sources = ()
        self._sent.release(None)
        self._received.release(read_by)

    def send_back(self, gradients: Sequence[Tensor], local_shapes: Sequence[torch.Size]) -> list[Tensor]:
        """Post the gradients of the targets to where their rows came from; `finish_back` ends it. Collective.

        Returns:
            The gradients of what `finish` got as ``local``, which has these shapes.
        """
        route, wire = self._route, self._wire
        codec = wire.gradient_codec
        # That of a sum is one number everywhere, whose rows are not in memory.
        gradients = [found if found.stride()[-1:] == (1,) else found.contiguous() for found in gradients]
        if self._after is not None and not self._after.has_sent_back:
            raise RecipeError(
                "backward passes of minibatches that were looked up at once ran out of order, or one was left out: run "
                "one through each, in the order of their lookups"
            )
        self.has_sent_back = True
        self.gradients = self._gradient_memory() if self._after is None else self._after.gradients
        sent = Messages(wire, codec, route.arriving, sent=True)
        for peer, landings in enumerate(route.landings[: wire.world.size]):
            packing = sent.packings[peer]
            for landing in landings if peer != self._rank else ():
                number, found = landing.block, gradients[landing.target.matrix]
                memory = sent.blocks[peer][number]
                if packing is None:
                    _take_back(found, landing, memory)
                elif landing.runs is None and not landing.add:
                    packing.pack(number, _gathered(found, landing.target), memory)
                else:
                    rows = found.new_empty(route.arriving[peer][number])
                    _take_back(found, landing, rows)
                    packing.pack(number, rows, memory)
        ready = _ready(wire, codec, route.outgoing[: wire.world.size], self.gradients)
        received = Messages(wire, codec, self._block_shapes, ready, sent=False)
        self._post(sent, received, stage="gradients")
        # While they travel:
        self._return_directly(self._rank, gradients, self.gradients)
        local = [torch.empty(shape, device=wire.device) for shape in local_shapes]
        if local:
            self._return_directly(wire.world.size, gradients, local)
        return local

    def finish_back(self) -> list[Tensor]:
        """Wait for the gradients of the sources, in memory that is used again once the backward pass is over."""
        if self._after is not None:
            self._after.finish_back()
        route, received = self._route, self._received
        self._pending.wait()
        received.open()
        for peer, blocks in enumerate(route.outgoing[: self._wire.world.size]):
            # None are there for this rank, nor where they were received in place.
            for number, (block, _) in enumerate(zip(blocks, received.blocks[peer], strict=False)):
                shape = self._block_shapes[peer][number]
                self._land_arrived(received, peer, Landing(number, block), self.gradients[block.matrix], shape)
        self._sent.release(None)
        received.release(None)
        if self._after is None:
            self._wire.give_after_backward(self._gradient_buffer)
        # The node that sent knows this transfer: memory of both would wait for Python's search for cycles.
        self.token = None
        return self.gradients

    def _land_arrived(self, received: Messages, peer: int, landing: Landing, target: Tensor, shape: Shape) -> None:
        """Copy or add a block of a message; what is packed goes straight to whole rows of the target."""
        number, block = landing.block, landing.target
        values, packing = received.blocks[peer][number], received.packings[peer]
        if packing is not None:
            fits = (target.dtype, target.device, target.shape[1:]) == (torch.float32, values.device, shape[1:])
            if landing.runs is None and not landing.add and fits and target.is_contiguous():
                if isinstance(block.rows, slice):
                    packing.unpack(number, values, target[block.rows])
                else:
                    packing.unpack(number, values, target, block.rows.to(target.device))
                return
            packed, values = values, torch.empty(shape, dtype=self._wire.dtype, device=values.device)
            packing.unpack(number, packed, values)
        _land(values, landing, target)

    def _post(self, sent: Messages, received: Messages, *, stage: str) -> None:
        self._sent, self._received = sent, received
        self._pending: Pending[None] = self._wire.world.start_exchange(
            sent.wholes,
            received.wholes,
            stage=f"{self._wire.stage}: {stage}",
            gives_way=self._wire.gives_way,
            num_rows=(sent.num_rows, received.num_rows),
            num_bytes=(sent.num_bytes, received.num_bytes),
        )

    def _return_directly(self, entry: int, gradients: Sequence[Tensor], out: Sequence[Tensor]) -> None:
        """Gradients of what landed here without a message."""
        for landing in self._route.landings[entry]:
            block = self._route.outgoing[entry][landing.block]
            found = gradients[landing.target.matrix]
            if isinstance(block.rows, slice):
                _take_back(found, landing, _view(out[block.matrix], block))
            elif landing.add:
                _move_added(_columns(out[block.matrix], block.columns), block.rows, landing, found, back=True)
            else:
                _write(out[block.matrix], block, _read(found, landing.target))

    def _gradient_memory(self) -> list[Tensor]:
        dtype, sizes = self._wire.dtype, [shape.numel() for shape in self._source_shapes]
        num_bytes = sum(sizes) * dtype.itemsize
        self._gradient_buffer = self._wire.buffers.take(num_bytes)
        flat = self._gradient_buffer[:num_bytes].view(dtype)
        return [part.view(shape) for part, shape in zip(flat.split(sizes), self._source_shapes, strict=True)]


class _Send(torch.autograd.Function):
    """Rows leave; in the backward pass their gradients have come back."""

    @staticmethod
    def forward(ctx: Any, transfer: Transfer, anchor: Tensor, *sources: Tensor) -> Tensor:
        del anchor
        ctx.transfer = transfer
        transfer.post(sources)
        return torch.empty(0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.transfer.is_last:
            return None, None, *ctx.transfer.finish_back()
        # The last one waits for what comes.
        return (None,) * len(ctx.needs_input_grad)


class _Receive(torch.autograd.Function):
    """Rows arrive; in the backward pass their gradients leave."""

    @staticmethod
    def forward(
        ctx: Any, transfer: Transfer, targets: list[Tensor], token: Tensor, *local: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.transfer = transfer
        ctx.token = token
        ctx.local_shapes = [tensor.shape for tensor in local]
        transfer.land(targets, local)
        return tuple(targets)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        local = ctx.transfer.send_back(gradients, ctx.local_shapes)
        return None, None, ctx.token, *local


def _ready(
    wire: Wire, codec: Codec, blocks: Sequence[Sequence[Block]], matrices: Sequence[Tensor | RowSource]
) -> list[Tensor | None] | None:
    """For each rank the memory of its message, where that can be sent, or received in, without a copy."""
    if codec.wire_dtype(wire.dtype) != wire.dtype or not matrices:
        return None
    found: list[Tensor | None] = []
    for of_rank in blocks:
        matrix = matrices[of_rank[0].matrix] if len(of_rank) == 1 else None
        view = _view(matrix, of_rank[0]) if isinstance(matrix, Tensor) and isinstance(of_rank[0].rows, slice) else None
        fits = view is not None and view.dtype == wire.dtype and view.is_contiguous() and view.device == wire.packed_on
        found.append(view if fits else None)
    return found


def _block_shapes(blocks: Sequence[Sequence[Block]], sources: Sequence[Tensor | RowSource]) -> list[list[Shape]]:
    """For each rank the shapes of its blocks."""
    return [[(block.num_rows, *_row_shape(block, sources[block.matrix])) for block in of_rank] for of_rank in blocks]


def _row_shape(block: Block, source: Tensor | RowSource) -> Sequence[int]:
    if block.columns is not None:
        return (block.columns[1] - block.columns[0],)
    return source.shape[1:] if isinstance(source, Tensor) else source.row_shape


def _columns(matrix: Tensor, columns: Range | None) -> Tensor:
    return matrix if columns is None else matrix[:, columns[0] : columns[1]]


def _view(matrix: Tensor, block: Block) -> Tensor:
    """A block of neighbouring rows, as a view."""
    rows = block.rows
    whole = isinstance(rows, slice) and rows.start == 0 and rows.stop == len(matrix)
    return _columns(matrix if whole else matrix[rows], block.columns)


def _read(matrix: Tensor, block: Block) -> Tensor:
    """A block, as a view where that is possible."""
    if isinstance(block.rows, slice):
        return _view(matrix, block)
    return _columns(matrix, block.columns).index_select(0, block.rows.to(matrix.device))


def _copy(source: Tensor | RowSource, block: Block, out: Tensor) -> None:
    """Copy a block into `out`, converting where dtypes differ."""
    if isinstance(block.rows, slice):
        assert isinstance(source, Tensor)
        out.copy_(_view(source, block))
    elif not isinstance(source, Tensor):
        source.gather(block.rows, out=out)
    elif block.columns is None and out.is_contiguous() and out.device == source.device:
        move_rows(source, block.rows.to(source.device), out, None)
    else:
        out.copy_(_read(source, block))


def _take_back(gradient: Tensor, landing: Landing, out: Tensor) -> None:
    """Copy the gradient of a block from that of the matrix where it has landed, in memory."""
    if landing.add:
        _move_added(out, None, landing, gradient, back=True)
    elif landing.runs is not None:
        move_columns(_view(gradient, landing.target), out, landing.runs, back=True)
    else:
        _copy(gradient, landing.target, out)


def _gathered(source: Tensor | RowSource, block: Block) -> Tensor:
    """A block as a contiguous matrix, of which it may be a view."""
    if isinstance(source, Tensor):
        return _read(source, block).contiguous()
    assert isinstance(block.rows, Tensor)
    rows = torch.empty((block.num_rows, *source.row_shape))
    source.gather(block.rows, out=rows)
    return rows


def _write(matrix: Tensor, block: Block, values: Tensor) -> None:
    """Copy values into a block."""
    if values.device != matrix.device:
        values = values.to(matrix.device, non_blocking=matrix.is_cuda)
    if isinstance(block.rows, slice):
        _view(matrix, block).copy_(values)
        return
    places = block.rows.to(matrix.device)
    if block.columns is None and matrix.is_contiguous():
        move_rows(values, None, matrix, places)
    else:
        _columns(matrix, block.columns).index_copy_(0, places, values.to(matrix.dtype))


def _land(values: Tensor, landing: Landing, target: Tensor) -> None:
    """Copy or add a block."""
    if landing.add:
        _move_added(values, None, landing, target)
    elif landing.runs is None:
        _write(target, landing.target, values)
    else:
        values = values.to(target.device, non_blocking=target.is_cuda)
        move_columns(values, _view(target, landing.target), landing.runs)


def _move_added(
    vectors: Tensor, positions: Tensor | None, landing: Landing, matrix: Tensor, *, back: bool = False
) -> None:
    """Add vectors to a matrix, or take their gradients back from that of the matrix."""
    places = landing.target.rows
    assert isinstance(places, Tensor)
    if (vectors.device, vectors.dtype) == (matrix.device, matrix.dtype):
        move_vectors(vectors, positions, matrix, places, back=back)
    elif back:
        own = matrix.new_empty(len(places), vectors.shape[1])
        move_vectors(own, None, matrix, places, back=True)
        vectors[slice(None) if positions is None else positions.to(vectors.device)] = own.to(vectors)
    else:
        move_vectors(vectors.to(matrix), positions, matrix, places)


def _land_directly(
    blocks: Sequence[Block],
    landings: Sequence[Landing],
    sources: Sequence[Tensor | RowSource],
    targets: Sequence[Tensor],
) -> None:
    """Land what needs no message."""
    for landing in landings:
        block, target = blocks[landing.block], targets[landing.target.matrix]
        source, places = sources[block.matrix], landing.target.rows
        if not isinstance(source, Tensor):
            assert isinstance(block.rows, Tensor)
            assert isinstance(places, Tensor)
            source.move(block.rows, target, places)
        elif landing.add and isinstance(block.rows, Tensor):
            _move_added(_columns(source, block.columns), block.rows, landing, target)
        elif isinstance(block.rows, slice):
            _land(_view(source, block), landing, target)
        elif isinstance(places, slice):
            _copy(source, block, _view(target, landing.target))
        elif (
            block.columns is landing.target.columns is None
            and target.is_contiguous()
            and source.device == target.device
        ):
            move_rows(source, block.rows.to(source.device), target, places.to(target.device))
        else:
            _write(target, landing.target, _read(source, block))
