//! Chromium without a window, for tests of pages.

mod pipe;

use std::path::Path;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use nix::unistd::geteuid;
use serde_json::{Value, json};

use self::pipe::Pipe;
use crate::error::{Error, Result};
use crate::folder;
use crate::process::{Launch, PATIENCE, Process};
use crate::servers::{self, CHROMIUM};

/// Gives the program its two pipes as the file descriptors that it expects.
const WITH_PIPES: &str = "exec \"$0\" \"$@\" 3<\"$PIPE_TO\" 4>\"$PIPE_FROM\"";
/// It contacts no outside service, and needs no window, sound, keyring or shared memory.
const FLAGS: &str = "--headless=new --remote-debugging-pipe --no-first-run --no-default-browser-check --no-proxy-server --disable-gpu \
                     --disable-dev-shm-usage --disable-extensions --disable-background-networking --disable-component-update \
                     --disable-sync --mute-audio --password-store=basic --force-color-profile=srgb";
/// Each question is work for the browser.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// What it misses of a desktop fills pages of its log.
const QUIET: &str = "--log-level=3";

/// A running browser with a separate profile; gone when dropped.
#[derive(Debug)]
pub struct Browser {
    process: Process,
    pipe: Pipe,
}

/// How a tab looks at a page; its size is in CSS pixels.
#[derive(Debug, Clone, Copy)]
pub struct PageView {
    width: u32,
    height: u32,
    /// With a finger instead of a mouse, and finer dots.
    phone: bool,
    /// Whether the user likes dark pages.
    dark: bool,
}

impl PageView {
    /// A desktop in daylight.
    pub const DESKTOP: Self = Self { width: 1360, height: 900, phone: false, dark: false };
    /// A phone.
    pub const PHONE: Self = Self { width: 390, height: 844, phone: true, dark: false };

    /// The same at night.
    #[must_use]
    pub const fn dark(self) -> Self {
        Self { dark: true, ..self }
    }
}

/// A tab.
#[derive(Debug)]
pub struct Tab<'a> {
    browser: &'a Browser,
    session: String,
}

impl Browser {
    /// A browser that has asked nothing yet.
    pub fn start() -> Result<Self> {
        let home = servers::home(&CHROMIUM)?;
        let folder = folder::temporary("browser")?;
        let place = |name: &str| folder.path().join(name);
        let fonts = format!(
            "<?xml version=\"1.0\"?><!DOCTYPE fontconfig SYSTEM \"fonts.dtd\"><fontconfig><dir>{}</dir><cachedir>{}</cachedir></fontconfig>",
            home.join("usr/share/fonts").display(),
            place("fonts").display()
        );
        std::fs::write(place("fonts.conf"), fonts).map_err(Error::io("fonts.conf"))?;
        let (to, from) = (place("to"), place("from"));
        let pipe = Pipe::make(&to, &from)?;
        let libraries = servers::libraries(&home);
        let text = |path: &Path| path.display().to_string();
        let environment = vec![
            ("HOME", text(folder.path())),
            ("TMPDIR", text(folder.path())),
            ("LD_LIBRARY_PATH", format!("{0}:{0}/pulseaudio", libraries.display())),
            ("FONTCONFIG_FILE", text(&place("fonts.conf"))),
            ("PIPE_TO", text(&to)),
            ("PIPE_FROM", text(&from)),
        ];
        let mut arguments = vec!["-c".to_owned(), WITH_PIPES.to_owned(), text(&home.join(CHROMIUM.programs[0]))];
        arguments.extend(FLAGS.split(' ').chain([QUIET]).map(str::to_owned));
        arguments.push(format!("--user-data-dir={}", place("profile").display()));
        if geteuid().is_root() {
            // Its sandbox does not work for root.
            arguments.push("--no-sandbox".to_owned());
        }
        let process = Launch { environment, ..Launch::new(CHROMIUM.title(), "/bin/sh".into(), arguments, folder) }.start()?;
        let browser = Self { process, pipe };
        browser.pipe.call(None, "Browser.getVersion", &json!({}))?;
        Ok(browser)
    }

    /// An empty tab.
    pub fn tab(&self, view: PageView) -> Result<Tab<'_>> {
        let target = self.pipe.call(None, "Target.createTarget", &json!({"url": "about:blank"}))?;
        let attached = self.pipe.call(None, "Target.attachToTarget", &json!({"targetId": target["targetId"], "flatten": true}))?;
        let session = attached["sessionId"].as_str().unwrap_or_default().to_owned();
        let tab = Tab { browser: self, session };
        for domain in ["Page", "Runtime", "Network", "Log"] {
            tab.call(&format!("{domain}.enable"), &json!({}))?;
        }
        tab.set_view(view)?;
        Ok(tab)
    }

    /// A tab with that page, once it has been loaded.
    pub fn open(&self, url: &str, view: PageView) -> Result<Tab<'_>> {
        let tab = self.tab(view)?;
        tab.go(url)?;
        Ok(tab)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // So that its child processes end too; if it does not react, it is killed.
        let _ = self.pipe.call(None, "Browser.close", &json!({}));
        let _ = self.process.kill();
    }
}

impl Tab<'_> {
    fn call(&self, method: &str, params: &Value) -> Result<Value> {
        self.browser.pipe.call(Some(&self.session), method, params)
    }

    /// Looks at the page in another way.
    pub fn set_view(&self, view: PageView) -> Result<()> {
        let PageView { width, height, phone, dark } = view;
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": if phone { 2 } else { 1 }, "mobile": phone});
        self.call("Emulation.setDeviceMetricsOverride", &metrics)?;
        let scheme = if dark { "dark" } else { "light" };
        self.call("Emulation.setEmulatedMedia", &json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]}))?;
        Ok(())
    }

    /// Opens another page in this tab.
    pub fn go(&self, url: &str) -> Result<()> {
        let went = self.call("Page.navigate", &json!({"url": url}))?;
        went["errorText"].as_str().map_or(Ok(()), |error| Err(Error::new(format!("{url}: {error}"))))
    }

    /// From now on accepts every certificate, as a user does who clicks through the browser's warning.
    pub fn believe_certificates(&self) -> Result<()> {
        self.call("Security.setIgnoreCertificateErrors", &json!({"ignore": true})).map(drop)
    }

    /// The value of an expression, as JSON; a promise is awaited.
    pub fn eval(&self, expression: &str) -> Result<Value> {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true, "userGesture": true});
        let mut answer = self.call("Runtime.evaluate", &params)?;
        match answer.get("exceptionDetails") {
            Some(thrown) => Err(Error::new(format!("{expression}: {thrown}"))),
            None => Ok(answer["result"]["value"].take()),
        }
    }

    /// Waits until an expression is worth something: not null, not false, not zero, not empty.
    pub fn until(&self, what: &str, expression: &str) -> Result<Value> {
        let begun = Instant::now();
        loop {
            // Between two pages there is nothing to ask.
            let seen = self.eval(expression);
            let is_empty = |value: &Value| matches!(value, Value::Null | Value::Bool(false)) || *value == json!(0) || *value == json!("");
            match seen {
                Ok(value) if !is_empty(&value) => return Ok(value),
                seen if begun.elapsed() > PATIENCE => {
                    let shown = self.eval("document.body.innerText").unwrap_or_default();
                    return Err(Error::new(format!("waited {PATIENCE:?} in vain until {what}; last: {seen:?}; the page shows: {shown}")));
                }
                _ => std::thread::sleep(ASK_EVERY),
            }
        }
    }

    /// Presses a key and lets go of it, such as `ArrowRight`.
    pub fn press(&self, key: &str) -> Result<()> {
        for kind in ["keyDown", "keyUp"] {
            self.call("Input.dispatchKeyEvent", &json!({"type": kind, "key": key, "code": key}))?;
        }
        Ok(())
    }

    /// The addresses of everything that the tab has fetched so far.
    pub fn fetched(&self) -> Vec<String> {
        let sent = self.browser.pipe.events(&self.session, "Network.requestWillBeSent");
        sent.iter().filter_map(|event| event["request"]["url"].as_str().map(str::to_owned)).collect()
    }

    /// The browser's complaints so far: uncaught exceptions, and errors in its log. A server's refusals are answers, not complaints.
    pub fn complaints(&self) -> Vec<String> {
        let thrown = self.browser.pipe.events(&self.session, "Runtime.exceptionThrown");
        let logged = self.browser.pipe.events(&self.session, "Log.entryAdded");
        let bad = logged
            .into_iter()
            .map(|event| event["entry"].clone())
            .filter(|entry| entry["level"] == "error" && entry["source"] != "network");
        thrown.into_iter().chain(bad).map(|event| event.to_string()).collect()
    }

    /// A picture of the whole page, as a PNG file.
    pub fn screenshot(&self, to: &Path) -> Result<()> {
        let picture = self.call("Page.captureScreenshot", &json!({"format": "png", "captureBeyondViewport": true}))?;
        let bytes = BASE64_STANDARD.decode(picture["data"].as_str().unwrap_or_default());
        let bytes = bytes.map_err(|error| Error::new(format!("a picture that cannot be read: {error}")))?;
        if let Some(folder) = to.parent() {
            std::fs::create_dir_all(folder).map_err(Error::io(folder.display()))?;
        }
        std::fs::write(to, bytes).map_err(Error::io(to.display()))
    }
}
