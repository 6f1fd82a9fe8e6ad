"""Runs before ComfyUI imports its own modules: imports `execution` early and wraps it then."""

import functools
import sys

import execution

calls = []
original = execution.execute
held = execution.PromptExecutor


@functools.wraps(original)
async def execute(*args, **kwargs):
    result = await original(*args, **kwargs)
    calls.append([args[6], args[3], result[0].name])
    return result


execution.execute = execute
sys.modules["stagexec_test_early"] = sys.modules.get(__name__) or type(sys)("stagexec_test_early")
sys.modules["stagexec_test_early"].calls = calls
sys.modules["stagexec_test_early"].held = held
