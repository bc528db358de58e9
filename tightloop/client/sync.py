"""Blocking client for scripts and threaded services."""

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from tightloop.client.client import TightloopClient
from tightloop.errors import InvalidRequestError

P = ParamSpec("P")
T = TypeVar("T")

# An iterator may yield any value, so none of them can mark the end.
_END: Any = object()
_CLOSE_SECONDS = 5.0


def _blocking(
    method: Callable[Concatenate[TightloopClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["SyncTightloopClient", P], T]:
    @wraps(method)
    def call(self: "SyncTightloopClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._portal.run(lambda: method(self._client, *args, **kwargs))

    return call


def _iterating(
    method: Callable[Concatenate[TightloopClient, P], AsyncGenerator[T]],
) -> Callable[Concatenate["SyncTightloopClient", P], Iterator[T]]:
    @wraps(method)
    def call(self: "SyncTightloopClient", /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        values = method(self._client, *args, **kwargs)

        async def following() -> T:
            return await anext(values, _END)

        try:
            while (value := self._portal.run(following)) is not _END:
                yield value
        finally:
            # Closing the client has already ended its iterators.
            with suppress(InvalidRequestError):
                self._portal.run(values.aclose)

    return call


class SyncTightloopClient:
    """Blocking variant of `TightloopClient`, created by `TightloopClient.sync`.

    The client is thread-safe. It works only in the process that created it, so each process must create
    its own client after a fork.

    In addition to its documented errors, each method raises `InvalidRequestError` after a fork or after
    `close`. Methods also raise this error in a thread with a running event loop, because they would block
    the loop.
    """

    def __init__(self, connect: Callable[[], Coroutine[Any, Any, TightloopClient]]) -> None:
        self._portal = _Portal()
        try:
            self._client = self._portal.run(connect)
        except BaseException:
            self._portal.close()
            raise

    def __enter__(self) -> "SyncTightloopClient":
        """Return the client. It is closed at the end of the `with` block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection and stop its thread. Pending calls are rejected. Idempotent."""
        self._portal.close()

    start = _blocking(TightloopClient.start)
    status = _blocking(TightloopClient.status)
    stored_status = _blocking(TightloopClient.stored_status)
    summary = _blocking(TightloopClient.summary)
    watch = _iterating(TightloopClient.watch)
    events = _iterating(TightloopClient.events)
    result = _blocking(TightloopClient.result)
    earlier_result = _blocking(TightloopClient.earlier_result)
    runs = _blocking(TightloopClient.runs)
    list = _blocking(TightloopClient.list)
    resolve = _blocking(TightloopClient.resolve)
    timeline = _blocking(TightloopClient.timeline)
    request = _blocking(TightloopClient.request)
    checkpoints = _blocking(TightloopClient.checkpoints)
    steps = _blocking(TightloopClient.steps)
    history = _blocking(TightloopClient.history)
    pause = _blocking(TightloopClient.pause)
    resume = _blocking(TightloopClient.resume)
    cancel = _blocking(TightloopClient.cancel)
    answer = _blocking(TightloopClient.answer)
    respond = _blocking(TightloopClient.respond)
    top_up = _blocking(TightloopClient.top_up)
    amend = _blocking(TightloopClient.amend)
    restore = _blocking(TightloopClient.restore)
    move = _blocking(TightloopClient.move)
    fork = _blocking(TightloopClient.fork)
    replan = _blocking(TightloopClient.replan)
    run_step = _blocking(TightloopClient.run_step)
    plan_project = _blocking(TightloopClient.plan_project)
    dispatch = _blocking(TightloopClient.dispatch)
    verify = _blocking(TightloopClient.verify)
    missing_search_attributes = _blocking(TightloopClient.missing_search_attributes)
    topology = _blocking(TightloopClient.topology)
    unserved_hosts = _blocking(TightloopClient.unserved_hosts)
    pollers = _blocking(TightloopClient.pollers)
    check_workspace = _blocking(TightloopClient.check_workspace)


class _Portal:
    """An event loop in a separate thread. Other threads submit coroutines to the loop."""

    def __init__(self) -> None:
        _refuse_loop()
        self._process = os.getpid()
        self._closed = False
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        # A daemon, so that a program that forgets `close` can exit.
        self._thread = threading.Thread(target=self._loop.run_forever, name="tightloop-client", daemon=True)
        self._thread.start()
        # Close before the interpreter tears down modules that the thread uses.
        atexit.register(self.close)

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine in the event loop's thread and return its result.

        Raises:
            InvalidRequestError: the client cannot be used in this process or thread.
        """
        _refuse_loop()
        if os.getpid() != self._process:
            raise InvalidRequestError(
                f"this client was created in process {self._process} and cannot be used in process {os.getpid()}, "
                "which was forked from it. Create a client in each process, for example in gunicorn's post_fork"
            )
        with self._lock:
            # A call submitted after the loop has stopped would wait forever.
            if self._closed:
                raise InvalidRequestError("this client is closed. Create a new one: TightloopClient.sync()")
            future = asyncio.run_coroutine_threadsafe(work(), self._loop)
        try:
            return future.result()
        except CancelledError:
            raise InvalidRequestError("this client was closed while it was waiting for a response") from None
        finally:
            # After Ctrl-C the result is not needed any more.
            future.cancel()

    def close(self) -> None:
        """Cancel all pending calls and stop the event loop's thread."""
        # After a fork the thread exists only in the parent process.
        if os.getpid() != self._process:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        # Otherwise each closed client would stay in memory until the process ends.
        atexit.unregister(self.close)
        # Bounded, because a task that ignores its cancellation must not block the program.
        asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop).result(_CLOSE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_SECONDS)
        self._loop.close()

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()


def _refuse_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise InvalidRequestError(
        "this thread runs an event loop, which this client would block. Use: await TightloopClient.connect()"
    )
