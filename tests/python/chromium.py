"""A headless Chromium driven over its debugging protocol: open, run a line of script, press, photograph."""
import base64
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
import urllib.request


PATIENCE = 180  # seconds until a browser that says nothing is given up


def find():
    """The program, or None."""
    return next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)


class Chromium:
    """One browser with one page. Every word a page says in its console as an error is kept in `errors`."""

    def __init__(self, width=1200, height=900, scripts=True):
        import websocket  # the PyPI package websocket-client

        self.folder = tempfile.mkdtemp(prefix="headwise-chromium-")
        self.process = subprocess.Popen(
            [find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
             "--remote-debugging-port=0", "--remote-allow-origins=*", f"--user-data-dir={self.folder}", f"--window-size={width},{height}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.number, self.errors, self.requests, self.loads = 0, [], [], set()
        try:
            self.socket = websocket.create_connection(self.address(), timeout=PATIENCE)
        except BaseException:
            self.end()
            raise
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.send("Page.setLifecycleEventsEnabled", enabled=True)
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        if not scripts:
            self.send("Emulation.setScriptExecutionDisabled", value=True)

    def address(self):
        """Where its page is driven, once the browser has started; a busy machine takes its time."""
        port_file, end = pathlib.Path(self.folder) / "DevToolsActivePort", time.monotonic() + PATIENCE
        while time.monotonic() < end and self.process.poll() is None:
            if port_file.exists() and len(lines := port_file.read_text().splitlines()) == 2:
                pages = json.load(urllib.request.urlopen(f"http://127.0.0.1:{lines[0]}/json/list", timeout=PATIENCE))
                if found := [p["webSocketDebuggerUrl"] for p in pages if p["type"] == "page"]:
                    return found[0]
            time.sleep(0.05)
        raise RuntimeError(f"chromium has no page after {PATIENCE} s")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()
        self.end()

    def end(self):
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def read(self):
        message = json.loads(self.socket.recv())
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Page.lifecycleEvent" and params["name"] == "load":
            self.loads.add(params["loaderId"])
        return message

    def send(self, method, **params):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": params}))
        while (message := self.read()).get("id") != self.number:
            pass
        assert "error" not in message, message["error"]
        return message["result"]

    def open(self, path):
        self.visit(pathlib.Path(path).resolve().as_uri())

    def visit(self, url):
        """Until this page has loaded: the page before it may load late, and says so too."""
        loader = self.send("Page.navigate", url=url)["loaderId"]
        while loader not in self.loads:
            self.read()

    def go(self, path, link=""):
        """A page of the viewer as somebody new to it opens it, by a link into it."""
        self.open(path)
        self.run("try { localStorage.clear() } catch {}")
        self.run(f"(location.hash = {link!r}, 0)")
        self.settle()

    def run(self, script):
        result = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def click(self, selector):
        """A real click in the middle of the element, which must be there and be seen."""
        at = self.run(f"""(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center', behavior: 'instant'}});
                          const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; }})()""")
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button="left", clickCount=1)
        self.settle()

    def settle(self):
        """What a click or key leads to, such as the toggle event of details, comes as tasks and frames of its own."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 0))))")

    def press(self, key, code=None):
        for kind in ("keyDown", "keyUp"):
            text = {"Enter": "\r", " ": " "}.get(key)
            extra = {"text": text} if text and kind == "keyDown" else {}
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=code or key, windowsVirtualKeyCode={"Enter": 13, "Tab": 9, " ": 32, "ArrowRight": 39, "ArrowDown": 40}.get(key, 0), **extra)
        self.settle()

    def prefer(self, scheme):
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def photograph(self, path, selector=None):
        """The whole page, or one element of it; returns the size of the file."""
        clip = {}
        if selector:
            x, y, width, height = self.run(f"""(() => {{ const r = document.querySelector({json.dumps(selector)}).getBoundingClientRect();
                return [r.x + scrollX, r.y + scrollY, r.width, r.height]; }})()""")
            clip = {"clip": {"x": x, "y": y, "width": width, "height": height, "scale": 1}}
        data = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True, **clip)["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(data))
        return os.path.getsize(path)
