"""The real host's parts and ours side by side in one process: the host's untouched, ours derived from them.

Imported by the check_*.py files only, in a process of its own: `STAGEXEC_TEST_TREE` names the host's tree.
"""
# ruff: noqa: E402 (the host wants its arguments set before it is imported)

from __future__ import annotations

import os
import sys
from typing import Any

from hypothesis import HealthCheck, Phase, settings

sys.path.insert(0, os.environ["STAGEXEC_TEST_TREE"])
sys.argv = ["main.py", "--cpu"]

import comfy.options

comfy.options.enable_args_parsing()
import comfy.cli_args

comfy.cli_args.args.cpu = True
import utils.extra_config  # noqa: F401, I001 (as main.py: others have a module called utils too)

import execution
import nodes
from comfy_execution import cache_provider  # noqa: F401 (for the check files)
from comfy_execution import progress as progress_module  # noqa: F401 (the same)
from comfy_execution.graph import DynamicPrompt, NodeNotFoundError  # noqa: F401 (the same)

from stagexec.executor.keyset import MerkleKeySet
from stagexec.executor.progress import CoalescedProgress
from stagexec.executor.schedule import Schedule
from stagexec.host.api import HostApi
from stagexec.host.hooks import mixed
from stagexec.host.tables import load

API = HostApi(execution, load())

HostKeys = execution.CacheKeySetInputSignature
HostList = execution.ExecutionList
HostProgress = execution.WebUIProgressHandler
OurKeys = mixed(MerkleKeySet)(API, execution, HostKeys)
OurList = mixed(Schedule)(API, execution, HostList)
OurProgress = mixed(CoalescedProgress)(API, execution, HostProgress)

# The same graphs each time, and no shrinking, which takes minutes. STAGEXEC_TEST_EXAMPLES explores.
EXPLORE = int(os.environ.get("STAGEXEC_TEST_EXAMPLES", "0"))
settings.register_profile(
    "ours",
    derandomize=not EXPLORE,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate] + [Phase.shrink] * bool(EXPLORE),
)
settings.load_profile("ours")


def examples(count: int) -> Any:
    """Settings for a test that tries `count` graphs; many more when exploring."""
    return settings(max_examples=EXPLORE or count)


def register(*classes: type) -> None:
    """Let the host know these node classes by their own names."""
    nodes.NODE_CLASS_MAPPINGS.update({one.__name__: one for one in classes})
