//! A headless Chromium, driven by real input events over the DevTools protocol.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tungstenite::{Message, WebSocket};

const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
const PATIENCE: Duration = Duration::from_secs(60);

/// A page in its own browser, which ends when this value is dropped.
pub(crate) struct Browser {
    child: Child,
    profile: PathBuf,
    socket: WebSocket<TcpStream>,
    session: Option<String>,
    calls: u64,
    /// The page's console output, and its uncaught errors.
    pub(crate) complaints: Vec<String>,
}

impl Browser {
    /// `None` if there is no Chromium; `COWSLIP_EXPECT` makes that a failure.
    pub(crate) fn start(name: &str) -> Option<Self> {
        let is_there = |name: &&str| {
            let version = Command::new(name).arg("--version").stderr(Stdio::null()).output();
            version.is_ok_and(|output| output.status.success())
        };
        let Some(program) = NAMES.into_iter().find(is_there) else {
            let declared = std::env::var("COWSLIP_EXPECT").unwrap_or_default();
            assert!(!declared.contains("chromium"), "chromium is declared present, but is not");
            println!("SKIPPED: chromium: it is not installed");
            return None;
        };
        let profile = std::env::temp_dir().join(format!("cowslip-{name}-{}", std::process::id()));
        let mut child = Command::new(program)
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"])
            .args(["--remote-debugging-port=0", "--window-size=1400,900", "--hide-scrollbars"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg("about:blank")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
        let listening = said.by_ref().find_map(|line| {
            line.unwrap().strip_prefix("DevTools listening on ws://").map(str::to_owned)
        });
        let address = listening.expect("Chromium says where it listens");
        // The output must be read: a full pipe would block the browser.
        std::thread::spawn(move || said.for_each(drop));
        let (host, _) = address.split_once('/').unwrap();
        let stream = TcpStream::connect(host).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (socket, _) = tungstenite::client(format!("ws://{address}"), stream).unwrap();
        let complaints = Vec::new();
        let mut browser = Self { child, profile, socket, session: None, calls: 0, complaints };
        browser.attach();
        Some(browser)
    }

    fn attach(&mut self) {
        let targets = self.call("Target.getTargets", json!({}));
        let pages = targets["targetInfos"].as_array().unwrap();
        let page = pages.iter().find(|target| target["type"] == "page").unwrap();
        let of = json!({ "targetId": page["targetId"], "flatten": true });
        let attached = self.call("Target.attachToTarget", of);
        self.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        self.call("Runtime.enable", json!({}));
    }

    /// Sends a command of the protocol; returns its result.
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        self.calls += 1;
        let mut message = json!({ "id": self.calls, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        self.socket.send(Message::text(message.to_string())).unwrap();
        loop {
            let answer = self.socket.read().unwrap_or_else(|error| panic!("{method}: {error}"));
            let answer: Value = serde_json::from_str(answer.to_text().unwrap()).unwrap();
            if answer["id"] == self.calls {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
            let is_complaint =
                ["Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"];
            if is_complaint.iter().any(|method| answer["method"] == *method) {
                self.complaints.push(answer["params"].to_string());
            }
        }
    }

    /// Opens a page and waits until it is ready.
    pub(crate) fn open(&mut self, page: &Path) {
        self.call("Log.enable", json!({}));
        self.call("Page.navigate", json!({ "url": format!("file://{}", page.display()) }));
        let state = self.evaluate(
            "new Promise(done => {
               const look = () => document.body?.dataset.state
                 ? requestAnimationFrame(() => requestAnimationFrame(() => done(document.body.dataset.state)))
                 : requestAnimationFrame(look);
               look();
             })",
        );
        assert_eq!(state, "ready", "{:?}", self.complaints);
    }

    /// The value of an expression in the page; of a promise, its result.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let how = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let answer = self.call("Runtime.evaluate", how);
        let thrown = &answer["exceptionDetails"];
        assert!(thrown.is_null(), "{expression}: {thrown}");
        answer["result"]["value"].clone()
    }

    /// Waits until the page has been drawn.
    pub(crate) fn settle(&mut self) {
        self.evaluate(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done())))",
        );
    }

    /// A mouse event: `mouseMoved`, `mousePressed`, `mouseReleased` or `mouseWheel`.
    pub(crate) fn mouse(&mut self, kind: &str, (x, y): (f64, f64), more: Value) {
        let mut event = json!({ "type": kind, "x": x, "y": y });
        event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.call("Input.dispatchMouseEvent", event);
    }

    /// Presses the left button at one point and releases it at another. `modifiers`: 8 is Shift.
    pub(crate) fn drag(&mut self, from: (f64, f64), to: (f64, f64), modifiers: u32) {
        let held =
            json!({ "button": "left", "buttons": 1, "clickCount": 1, "modifiers": modifiers });
        self.mouse("mouseMoved", from, json!({ "modifiers": modifiers }));
        self.mouse("mousePressed", from, held.clone());
        let middle = (f64::midpoint(from.0, to.0), f64::midpoint(from.1, to.1));
        self.mouse("mouseMoved", middle, held.clone());
        self.mouse("mouseMoved", to, held.clone());
        self.mouse("mouseReleased", to, held);
        self.settle();
    }

    pub(crate) fn click(&mut self, at: (f64, f64)) {
        let held = json!({ "button": "left", "buttons": 1, "clickCount": 1 });
        self.mouse("mousePressed", at, held.clone());
        self.mouse("mouseReleased", at, held);
        self.settle();
    }

    pub(crate) fn key(&mut self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            self.call("Input.dispatchKeyEvent", json!({ "type": kind, "key": key }));
        }
        self.settle();
    }

    /// Gives the page a window of this size.
    pub(crate) fn resize(&mut self, width: u32, height: u32) {
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.call("Emulation.setDeviceMetricsOverride", metrics);
        self.settle();
    }

    /// The text of the first element that matches a selector.
    pub(crate) fn text(&mut self, selector: &str) -> String {
        let text = self.evaluate(&format!("document.querySelector({selector:?}).textContent"));
        text.as_str().unwrap().to_owned()
    }

    /// The middle of the first element that matches a selector, scrolled into view.
    pub(crate) fn middle(&mut self, selector: &str) -> (f64, f64) {
        let middle = self.evaluate(&format!(
            "(element => {{
               element.scrollIntoView({{ block: 'nearest' }});
               const box = element.getBoundingClientRect();
               return [box.x + box.width / 2, box.y + box.height / 2];
             }})(document.querySelector({selector:?}))"
        ));
        (middle[0].as_f64().unwrap(), middle[1].as_f64().unwrap())
    }

    /// Saves a picture of the page for people, if `COWSLIP_SHOTS` names a folder.
    pub(crate) fn show(&mut self, name: &str) {
        use base64::Engine;
        let Some(folder) = std::env::var_os("COWSLIP_SHOTS") else { return };
        let shot = self.call("Page.captureScreenshot", json!({ "format": "png" }));
        let base64 = base64::engine::general_purpose::STANDARD;
        let png = base64.decode(shot["data"].as_str().unwrap()).unwrap();
        std::fs::write(Path::new(&folder).join(format!("{name}.png")), png).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.session = None;
        let close = json!({ "id": 0, "method": "Browser.close" }).to_string();
        if self.socket.send(Message::text(close)).is_err() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.profile);
    }
}
