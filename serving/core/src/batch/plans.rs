//! The plans of all models, by key.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::batch::places::Places;
use crate::batch::plan::{Key, Plan};

/// Plans, and keys that have none, that are remembered.
const MAX_KEYS: usize = 1024;
/// Longer keys are not remembered, for their strings stay when their requests are gone.
const MAX_KEY_BYTES: usize = 16 << 10;
/// A key that Python has no plan for is asked for again after so long.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Python finds a plan in some milliseconds, where nothing holds it up.
const PATIENCE: Duration = Duration::from_millis(250);

enum Known {
    Plan(Arc<Plan>),
    /// Python was asked, and has said nothing so far.
    Asked(Instant),
    /// Python was asked, and has none.
    Nothing(Instant),
}

/// Why there is no plan for a key.
#[derive(PartialEq)]
pub enum Missing {
    /// Python is to be asked for one.
    Ask,
    /// It was asked, and has not answered yet.
    Asked,
    /// It has none, or is not to be asked.
    Nothing,
}

/// Plans by key, found out as requests come.
pub struct Plans {
    known: RwLock<HashMap<Key, Known>>,
    /// Plans that were replaced, as long as requests hold them: they count, too.
    retired: Mutex<Vec<Arc<Plan>>>,
    /// By model, requests that were let in and are not answered yet.
    waiting: Mutex<HashMap<String, Arc<AtomicUsize>>>,
    places: Places,
    /// Tells that Python has answered a question for a plan, with one or without.
    learned: Notify,
}

impl Plans {
    /// None; there are so many threads of the transport, or as many as need no care.
    pub fn new(threads: usize) -> Plans {
        Plans {
            known: RwLock::default(),
            retired: Mutex::default(),
            waiting: Mutex::default(),
            places: Places::new(threads),
            learned: Notify::new(),
        }
    }

    /// Has sockets looked at while threads compute: see [`Places::watch`].
    pub fn watch(&self, runtime: Handle) -> std::io::Result<()> {
        self.places.watch(runtime)
    }

    /// Answers the requests of a version's batches that have been computed for so long. Those that wait and those that
    /// come are handed over, until there is a new plan.
    pub fn give_up(&self, model: &str, version: i64, longer: Duration, text: Option<&Arc<str>>) {
        let retired = self.retired.lock().clone();
        for plan in
            self.current().into_iter().chain(retired).filter(|plan| plan.version == version && plan.key.model == model)
        {
            plan.give_up(longer, text);
        }
    }

    /// The plan for a key, or why there is none.
    pub fn find(&self, key: &Key) -> Result<Arc<Plan>, Missing> {
        if let Some(found) = answer(self.known.read().get(key)) {
            return found;
        }
        if key.bytes() > MAX_KEY_BYTES {
            return Err(Missing::Nothing);
        }
        let mut known = self.known.write();
        // Another request may have asked in the meantime, or Python have answered.
        if let Some(found) = answer(known.get(key)) {
            return found;
        }
        if known.len() >= MAX_KEYS && !known.contains_key(key) {
            // Strangers may make up names, and orders of outputs: what nobody uses makes room.
            known.retain(|_, known| match known {
                Known::Plan(plan) if plan.is_stale() || !plan.was_used() => {
                    self.retire(plan.clone());
                    false
                }
                Known::Plan(_) => true,
                Known::Asked(_) | Known::Nothing(_) => false,
            });
            if known.len() >= MAX_KEYS {
                return Err(Missing::Nothing);
            }
        }
        self.replace(known.insert(key.clone(), Known::Asked(Instant::now())));
        Err(Missing::Ask)
    }

    /// The plan for a key that Python was asked for, where that comes soon.
    pub async fn wait(&self, key: &Key) -> Option<Arc<Plan>> {
        let end = tokio::time::Instant::now() + PATIENCE;
        loop {
            let learned = self.learned.notified();
            match self.find(key) {
                Ok(plan) => return Some(plan),
                Err(Missing::Asked) => tokio::time::timeout_at(end, learned).await.ok()?,
                Err(_) => return None,
            }
        }
    }

    /// Python has answered the question for a key: with a plan that is there now, or it has none.
    pub fn learned(&self, key: &Key) {
        if let Some(known @ Known::Asked(_)) = self.known.write().get_mut(key) {
            *known = Known::Nothing(Instant::now());
        }
        self.learned.notify_waiters();
    }

    /// Adds a plan.
    pub fn add(&self, mut plan: Plan) {
        let mut waiting = self.waiting.lock();
        plan.waiting = waiting.entry(plan.key.model.clone()).or_default().clone();
        plan.places = self.places.clone();
        drop(waiting);
        let mut known = self.known.write();
        self.replace(known.insert(plan.key.clone(), Known::Plan(Arc::new(plan))));
    }

    /// Has Python asked again for the plans of a model, but for those of some versions.
    pub fn forget(&self, model: &str, keep: &[i64]) {
        self.known.write().retain(|key, known| match known {
            Known::Plan(plan) if key.model == model && !keep.contains(&plan.version) => {
                self.retire(plan.clone());
                false
            }
            _ => true,
        });
    }

    /// Requests that were let in and are not answered yet.
    pub fn waiting(&self) -> usize {
        let waiting = self.waiting.lock();
        waiting.values().map(|number| number.load(Ordering::Relaxed)).sum()
    }

    fn replace(&self, old: Option<Known>) {
        if let Some(Known::Plan(plan)) = old {
            self.retire(plan);
        }
    }

    fn retire(&self, plan: Arc<Plan>) {
        plan.retire();
        self.retired.lock().push(plan);
    }

    fn current(&self) -> Vec<Arc<Plan>> {
        let plan = |known: &Known| match known {
            Known::Plan(plan) => Some(plan.clone()),
            Known::Asked(_) | Known::Nothing(_) => None,
        };
        self.known.read().values().filter_map(plan).collect()
    }

    /// All plans that may hold statistics, for one who takes them: retired ones that no request holds are forgotten.
    pub fn take_all(&self) -> Vec<Arc<Plan>> {
        // One lock after the other: who replaces a plan takes the second with the first one held.
        let mut all = self.current();
        let mut retired = self.retired.lock();
        all.extend(retired.iter().cloned());
        retired.retain(|plan| Arc::strong_count(plan) > 2);
        all
    }
}

/// As [`Plans::find`], by what is known; `None` where that is nothing, or old.
fn answer(known: Option<&Known>) -> Option<Result<Arc<Plan>, Missing>> {
    match known {
        Some(Known::Plan(plan)) if !plan.is_stale() => {
            plan.touch();
            Some(Ok(plan.clone()))
        }
        Some(Known::Asked(when)) if when.elapsed() < ASK_AGAIN => Some(Err(Missing::Asked)),
        Some(Known::Nothing(when)) if when.elapsed() < ASK_AGAIN => Some(Err(Missing::Nothing)),
        _ => None,
    }
}
