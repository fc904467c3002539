"""Write every dashboard to deploy/grafana/dashboards, where Grafana and its users find them."""

from __future__ import annotations

from pathlib import Path

from deploy.grafana.boards.catalogue import BOARDS, written

_DIRECTORY = Path(__file__).resolve().parents[1] / "dashboards"

if __name__ == "__main__":
    for board in BOARDS:
        file = _DIRECTORY / f"{board.name}.json"
        file.write_text(written(board))
        print(file.relative_to(Path.cwd()))
