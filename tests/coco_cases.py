"""Small COCO data sets for tests of the packing programs, and a way to run these programs."""

import hashlib
import json
import subprocess
import sys
import tarfile
from pathlib import Path

from draw_coco import draw_coco

TOOLS = Path(__file__).resolve().parents[1] / "tools"
SIZE = (96, 72)


def run_tool(program, *arguments, **options):
    """Run tools/<program> with these arguments to its end and return the completed process, output as text."""
    return subprocess.run(
        tool(program, *arguments), capture_output=True, text=True, timeout=120, check=False, **options
    )


def tool(program, *arguments):
    return [sys.executable, str(TOOLS / program), *map(str, arguments)]


def draw(folder, images=24):
    """Draw a small set; return (folder of images, captions file)."""
    draw_coco(folder, images=images, size=SIZE)
    return folder / "images", folder / "captions.json"


def edit(captions, change):
    """Let `change` edit the content of a captions file in place."""
    content = json.loads(captions.read_text())
    change(content)
    captions.write_text(json.dumps(content))


def image(image_id, **fields):
    """An image of a captions file."""
    return {"id": image_id, "file_name": f"{image_id:012d}.jpg", "width": SIZE[0], "height": SIZE[1], **fields}


def captions_bytes(images, annotations):
    return json.dumps({"images": images, "annotations": annotations}).encode()


def pack(folder_or_zip, captions, out, *more, **options):
    """Run the packer."""
    return run_tool("pack_coco.py", "--images", folder_or_zip, "--captions", captions, "--out", out, *more, **options)


def digests(folder):
    """File name -> sha256 of every file of a folder."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def members(out):
    """Member name -> bytes of all shards, in order."""
    found = {}
    for path in sorted(out.glob("*.tar")):
        with tarfile.open(path) as tar:
            found |= {member.name: tar.extractfile(member).read() for member in tar}
    return found


def rejected(out):
    return [json.loads(line) for line in (out / "rejected.jsonl").read_text().splitlines()]


def succeeded(done):
    """The report of a packing that went well."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refused(done, out, status=1):
    """The message of a packing that was refused and left nothing behind."""
    assert done.returncode == status
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert not out.exists() or list(out.iterdir()) == []
    return done.stderr
