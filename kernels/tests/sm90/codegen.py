"""Static facts of a compiled kernel, read from its cubin and lowered host module; no GPU needed."""

from __future__ import annotations

import collections
import re
import subprocess
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels.jit import KernelSpec, compile_spec

SMEM_LIMIT = 232_448  # dynamic shared memory a block can ask for on sm_90; the compiler does not check it


@dataclass(frozen=True)
class Facts:
    registers: int
    """At launch; setmaxnreg changes it for each role afterwards."""
    stack_bytes: int
    """Spills show here, not in LOCAL."""
    dynamic_smem: int
    threads: int
    opcodes: collections.Counter[str]
    """SASS instructions by full opcode."""
    setmaxnreg: tuple[int, int] | None
    """(dealloc, alloc) registers a thread."""
    serialized_wgmma: bool
    """ptxas put a wait behind every single wgmma."""

    def count(self, prefix: str) -> int:
        return sum(n for op, n in self.opcodes.items() if op.startswith(prefix))


def _tool(name: str) -> str:
    return str(Path(sysconfig.get_paths()["purelib"]) / "nvidia" / "cu13" / "bin" / name)


def _launch(module: str) -> tuple[int, int]:
    """Threads a block and dynamic shared memory, from the constants stored in the launch configuration."""
    constants: dict[str, int] = {}
    fields: dict[str, str] = {}
    threads, smem = 1, 0
    for line in module.splitlines():
        if m := re.match(r"\s*(%\S+) = llvm\.mlir\.constant\((-?\d+) : i\d+\)", line):
            constants[m[1]] = int(m[2])
        elif m := re.match(
            r"\s*(%\S+) = llvm\.getelementptr %\S+\[0, ([\d, ]+)\].*array<3 x i32>, array<3 x i32>", line
        ):
            fields[m[1]] = m[2].replace(" ", "")
        elif (m := re.match(r"\s*llvm\.store (%\S+), (%\S+) : i(32|64), !llvm\.ptr", line)) and m[2] in fields:
            value = constants.get(m[1], 0)
            if fields[m[2]].startswith("1,"):
                threads *= value
            elif fields[m[2]] == "2":
                smem = value
    return threads, smem


def facts(spec: KernelSpec) -> Facts:
    compiled: Any = compile_spec(spec, inspect=True)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.__cubin__)
        file.flush()
        usage, sass = (
            subprocess.run([_tool(tool), flag, file.name], capture_output=True, text=True, check=True).stdout
            for tool, flag in (("cuobjdump", "--dump-resource-usage"), ("nvdisasm", "-c"))
        )
    resources = dict(re.findall(r"(REG|STACK):(\d+)", usage))
    lines = re.findall(r"^\s+/\*[0-9a-f]{4,5}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)([^;\n]*)", sass, re.MULTILINE)
    opcodes = collections.Counter(op for op, _ in lines)
    changes = {
        op: int(m[0], 16) for op, rest in lines if op.startswith("USETMAXREG") and (m := re.findall(r"0x\w+", rest))
    }
    dealloc = [v for k, v in changes.items() if "DEALLOC" in k]
    alloc = [v for k, v in changes.items() if "TRY_ALLOC" in k]
    threads, smem = _launch(str(compiled.ir_module))
    wgmmas = sum(n for op, n in opcodes.items() if op.startswith("HGMMA"))
    full_waits = sum(op.startswith("WARPGROUP.DEPBAR") and rest.strip(" ;").endswith("0x0") for op, rest in lines)
    return Facts(
        registers=int(resources["REG"]), stack_bytes=int(resources["STACK"]), dynamic_smem=smem, threads=threads,
        opcodes=opcodes, setmaxnreg=(dealloc[0], alloc[0]) if dealloc and alloc else None,
        serialized_wgmma=wgmmas > 0 and 2 * full_waits >= wgmmas,
    )  # fmt: skip
