"""From what code a result comes."""

import subprocess
from pathlib import Path


def commit(folder: Path = Path(__file__).parent) -> str:
    """The commit of the code, with ``+`` where Python files differ from it; empty outside a repository."""

    def git(*arguments: str) -> str:
        return subprocess.run(['git', '-C', folder, *arguments], capture_output=True, text=True, check=False).stdout

    return git('rev-parse', 'HEAD').strip() + ('+' if git('status', '--porcelain', '--', ':(top)*.py') else '')


def note_commit(file: Path) -> str:
    """Add this process's commit to a run's file; all that it has been trained with, one after another."""
    known = file.read_text().split() if file.exists() else []
    now = commit()
    if now and now not in known[-1:]:
        known.append(now)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(' '.join(known) + '\n')
    return ' '.join(known)
