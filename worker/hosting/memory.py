"""Keeps a worker with many waiting workflows small."""

import asyncio
import ctypes
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar, cast

from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload
from temporalio.bridge.proto.workflow_activation import InitializeWorkflow
from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowInstance, WorkflowInstanceDetails
from temporalio.worker._interceptor import ExecuteWorkflowInput
from temporalio.worker._workflow_instance import _WorkflowInstanceImpl

TRIM_S = 60.0

M = TypeVar("M", bound=Message)


class _Instance(_WorkflowInstanceImpl):
    """A workflow that holds copies of what it keeps of the message that started it.

    A part of a protobuf message keeps the whole of it in memory, with its decoded payloads: 19 kB a workflow.
    """

    def __init__(self, det: WorkflowInstanceDetails) -> None:
        info = replace(det.info, raw_memo=_copies(det.info.raw_memo), headers=_copies(det.info.headers))
        super().__init__(replace(det, info=info, last_completion_result=_copy(det.last_completion_result)))

    def _make_workflow_input(self, init_job: InitializeWorkflow) -> ExecuteWorkflowInput:
        return replace(super()._make_workflow_input(init_job), headers=self._info.headers)


class LeanRunner(UnsandboxedWorkflowRunner):
    """Runs workflows without the sandbox, and without the message that started each of them."""

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        instance: WorkflowInstance = cast("Any", _Instance)(det)
        return instance


def _copies(payloads: Mapping[str, Payload]) -> dict[str, Payload]:
    return {name: _copy(payload) for name, payload in payloads.items()}


def _copy(message: M) -> M:
    return type(message).FromString(message.SerializeToString())


async def give_memory_back(every: float = TRIM_S) -> None:
    """Return freed memory to the operating system again and again: glibc keeps what lies below memory in use."""
    while True:
        await asyncio.sleep(every)
        await asyncio.to_thread(trim)


def trim() -> None:
    """Return freed memory to the operating system, where the C library can."""
    release = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if release is not None:
        release(0)
