//! Traffic rules: which version answers requests that name none. Python makes them, and says of every change.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::{Mutex, RwLock};
use ring::digest;

use crate::batch::Key;
use crate::histogram::Histogram;

/// What is handed over to Python says where it was drawn: drawn once more, a version whose requests all go to Python
/// would get the square of its share.
const TICKET: HeaderName = HeaderName::from_static("x-modelyard-ticket");

/// Takes off the number that a client says was drawn for it.
pub fn unstamp(headers: &mut HeaderMap) {
    headers.remove(TICKET);
}

/// A version that requests may go to.
pub struct Target {
    /// By which the version header names it.
    pub name: String,
    pub version: Option<i64>,
    pub label: Option<String>,
    /// The version that it is now.
    pub serving: Option<i64>,
    /// Of the requests, from 0 to 1, by the file; the first target's is what the others leave.
    pub share: f64,
    /// It is rolled back: requests that name it, and its share, get the first.
    pub out: bool,
    pub ended: Arc<Mutex<Ended>>,
}

/// How the requests of a target ended.
#[derive(Default)]
pub struct Ended {
    /// How many, by the name of gRPC's status.
    pub statuses: HashMap<&'static str, u64>,
    /// How long those took that were answered, and those that were not by their deadline.
    pub times: Histogram,
}

/// What requests of one model get that name neither a version nor a label.
pub struct Rule {
    pub model: String,
    pub version_header: Option<HeaderName>,
    pub sticky_header: Option<HeaderName>,
    /// Share of the requests that a shadow computes, too.
    pub shadow: f64,
    /// At least one.
    pub targets: Vec<Target>,
}

/// Where a request goes.
pub struct Route {
    rule: Arc<Rule>,
    target: usize,
    /// A shadow computes it, too.
    pub shadow: bool,
}

impl Route {
    /// A request has ended with a status of gRPC, after some time.
    pub fn ended(&self, status: &'static str, time: Duration) {
        let mut ended = self.rule.targets[self.target].ended.lock();
        *ended.statuses.entry(status).or_default() += 1;
        if matches!(status, "OK" | "DEADLINE_EXCEEDED") {
            ended.times.add(time, None);
        }
    }
}

/// The rules of all models.
#[derive(Default)]
pub struct Traffic {
    /// There are some.
    active: AtomicBool,
    rules: RwLock<HashMap<String, Arc<Rule>>>,
}

impl Traffic {
    pub fn set(&self, mut rules: Vec<Rule>) {
        self.active.store(!rules.is_empty(), Ordering::Relaxed);
        let mut present = self.rules.write();
        for rule in &mut rules {
            let Some(before) = present.get(&rule.model) else { continue };
            for target in &mut rule.targets {
                // Requests on their way are counted when they end, but not as those of another version.
                let is_same = |other: &&Target| {
                    other.name == target.name && (other.serving.is_none() || other.serving == target.serving)
                };
                if let Some(same) = before.targets.iter().find(is_same) {
                    target.ended = same.ended.clone();
                }
            }
        }
        *present = rules.into_iter().map(|rule| (rule.model.clone(), Arc::new(rule))).collect();
    }

    /// How requests ended since the last time, by model and target.
    pub fn take(&self) -> Vec<(String, String, Ended)> {
        let rules = self.rules.read();
        let all = rules.values().flat_map(|rule| rule.targets.iter().map(move |target| (rule, target)));
        all.filter_map(|(rule, target)| {
            let found = std::mem::take(&mut *target.ended.lock());
            (!found.statuses.is_empty()).then(|| (rule.model.clone(), target.name.clone(), found))
        })
        .collect()
    }

    /// Draws a number for a request, whatever its client says.
    pub fn stamp(&self, headers: &mut HeaderMap) {
        if !self.active.load(Ordering::Relaxed) {
            return;
        }
        // A number is always a valid value.
        if let Ok(value) = HeaderValue::from_str(&fastrand::f64().to_string()) {
            headers.insert(TICKET, value);
        }
    }

    /// Gives a key that names no version that of its request's target; `None` where Python must choose.
    pub fn route(&self, key: &mut Key, headers: &HeaderMap) -> Option<Option<Route>> {
        if !self.active.load(Ordering::Relaxed) || key.version.is_some() || key.label.is_some() {
            return Some(None);
        }
        let found = self.rules.read().get(&key.model).cloned();
        let Some(rule) = found else { return Some(None) };
        let target = rule.choose(headers)?;
        key.version = rule.targets[target].version;
        key.label.clone_from(&rule.targets[target].label);
        let shadow = rule.shadow > 0.0 && fastrand::f64() < rule.shadow;
        Some(Some(Route { rule, target, shadow }))
    }
}

impl Rule {
    /// The target of a request; `None` where Python must say what is wrong with it.
    fn choose(&self, headers: &HeaderMap) -> Option<usize> {
        if let Some(name) = value(headers, self.version_header.as_ref())? {
            let found = self.targets.iter().position(|target| target.name.as_bytes() == name)?;
            return Some(if self.targets[found].out { 0 } else { found });
        }
        let mut number = match value(headers, self.sticky_header.as_ref())? {
            Some(user) => {
                let digest = digest::digest(&digest::SHA256, &[self.model.as_bytes(), b"\0", user].concat());
                fraction(u64::from_be_bytes(digest.as_ref().first_chunk().copied()?))
            }
            None => headers.get(TICKET)?.to_str().ok()?.parse().ok()?,
        };
        for (index, target) in self.targets.iter().enumerate().skip(1) {
            number -= target.share;
            if number < 0.0 {
                return Some(if target.out { 0 } else { index });
            }
        }
        Some(0)
    }
}

/// A header's value, where there is one; `None` for several, which Python joins.
fn value<'a>(headers: &'a HeaderMap, name: Option<&HeaderName>) -> Option<Option<&'a [u8]>> {
    let Some(name) = name else { return Some(None) };
    let mut values = headers.get_all(name).iter().map(HeaderValue::as_bytes).filter(|value| !value.is_empty());
    let first = values.next();
    values.next().is_none().then_some(first)
}

fn fraction(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}
