"""Keys and values in storage that servers share: hierarchical caching onto files (SGLang 0.5.23)."""

import json
from pathlib import Path

PAGE_TOKENS = 16
FOLDER = "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"
_PREFETCH = json.dumps({"prefetch_threshold": PAGE_TOKENS})  # 256 tokens by default: a short history would stay behind


def arguments() -> tuple[str, ...]:
    """What a server is started with."""
    return (
        "--enable-hierarchical-cache",
        "--hicache-storage-backend=file",
        f"--page-size={PAGE_TOKENS}",
        "--hicache-write-policy=write_through",
        "--hicache-storage-prefetch-policy=wait_complete",
        f"--hicache-storage-backend-extra-config={_PREFETCH}",
    )


def environment(folder: Path) -> dict[str, str]:
    """Where it keeps them; the same for all servers of a run."""
    return {FOLDER: str(folder)}
