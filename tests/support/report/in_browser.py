"""Shows pages in Qt's WebEngine, which is Chromium without a window, and tells what it made of them, as JSON.

It is a program of its own, run by whichever Python has PyQt6-WebEngine: the tests' environment need not, for it takes
half a gigabyte. Arguments: "light" or "dark", a folder for the pictures, and pages as WIDTHxPATH.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

SCHEME, FOLDER, *SHOWN = sys.argv[1:]
os.environ["QT_QPA_PLATFORM"] = "offscreen"
os.environ["QTWEBENGINE_CHROMIUM_FLAGS"] = f"--blink-settings=preferredColorScheme={('dark', 'light').index(SCHEME)}"
if hasattr(os, "geteuid") and os.geteuid() == 0:
    os.environ["QTWEBENGINE_DISABLE_SANDBOX"] = "1"  # Chromium refuses to run as root with one

from PyQt6.QtCore import QTimer, QUrl  # noqa: E402
from PyQt6.QtWebEngineCore import QWebEnginePage, QWebEngineSettings  # noqa: E402
from PyQt6.QtWebEngineWidgets import QWebEngineView  # noqa: E402
from PyQt6.QtWidgets import QApplication  # noqa: E402

LOOK = """(() => {
  const seen = element => { const box = element.getBoundingClientRect(); return box.width > 0 && box.height > 0; };
  const root = document.documentElement, style = getComputedStyle(document.body);
  const all = [...document.body.querySelectorAll("*")];
  const beyond = all.filter(each => seen(each) && getComputedStyle(each).position != "absolute" &&
    each.getBoundingClientRect().right > root.clientWidth + 1 && !each.closest("svg, [role=region]"));
  const cut = all.filter(each => each.matches("p, h1, td, dd") &&
    each.scrollWidth > each.clientWidth + 1);
  return {
    height: root.scrollHeight, width: root.clientWidth, wanted: root.scrollWidth,
    dark: matchMedia("(prefers-color-scheme: dark)").matches, ink: style.color, page: style.backgroundColor,
    scripts: document.scripts.length, images: document.images.length,
    links: document.querySelectorAll("[href], [src], [style]").length,
    loaded: performance.getEntriesByType("resource").length,
    beyond: beyond.map(each => each.outerHTML.slice(0, 120)), cut: cut.map(each => each.outerHTML.slice(0, 120)),
    charts: [...document.querySelectorAll("svg.field")].filter(seen).length,
    lines: [...document.querySelectorAll("path.line")].map(each => getComputedStyle(each).stroke),
    first: document.querySelector("h1").getBoundingClientRect().bottom,
  };
})()"""


class Quiet(QWebEnginePage):
    """Keeps what the browser complains about, such as a breach of the policy."""

    def __init__(self, view: QWebEngineView) -> None:
        super().__init__(view)
        self.said: list[str] = []

    def javaScriptConsoleMessage(self, level, message, line, source) -> None:
        self.said.append(message)


class Show:
    def __init__(self, app: QApplication) -> None:
        self._app, self._left, self._found = app, list(SHOWN), []
        self._view = QWebEngineView()
        self._page = Quiet(self._view)
        self._view.setPage(self._page)
        self._page.settings().setAttribute(QWebEngineSettings.WebAttribute.ShowScrollBars, False)
        self._page.loadFinished.connect(self._loaded)
        self._view.show()
        self._next()

    def _next(self) -> None:
        if not self._left:
            sys.stdout.write(json.dumps(self._found))
            self._app.quit()
            return
        width, _, path = self._left.pop(0).partition("x")
        self._width, self._name = int(width), f"{Path(path).stem}-{width}-{SCHEME}.png"
        self._page.said.clear()
        self._view.resize(self._width, 600)
        self._view.load(QUrl.fromLocalFile(path))

    def _loaded(self, well: bool) -> None:
        if not well:
            sys.exit("the page could not be loaded")
        self._page.runJavaScript(LOOK, self._looked)

    def _looked(self, look: dict) -> None:
        self._look, self._last = {**look, "said": list(self._page.said)}, None
        self._view.resize(self._width, int(look["height"]))
        self._settle()

    def _settle(self) -> None:
        """Take the picture once it has been painted down to its foot, and does not change any more."""
        picture = self._view.grab().toImage()
        foot = {picture.pixel(x, picture.height() - y) for x in range(10, 350) for y in range(20, 120, 2)}
        if len(foot) > 1 and picture == self._last:
            picture.save(str(Path(FOLDER) / self._name))
            self._found.append({**self._look, "picture": self._name})
            self._next()
        else:
            self._last = picture
            QTimer.singleShot(60, self._settle)


if __name__ == "__main__":
    app = QApplication([sys.argv[0], "--disable-gpu"])
    show = Show(app)
    sys.exit(app.exec())
