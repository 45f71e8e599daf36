//! The threads of the transport that compute.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tokio::runtime::Handle;

/// How long nobody may look for what comes.
const LOOK: Duration = Duration::from_millis(20);

/// The threads of the transport, and how many of them compute. One must always be left that reads and answers, since a
/// batch may never end.
#[derive(Clone)]
pub struct Places {
    computing: Arc<AtomicUsize>,
    threads: usize,
}

impl Places {
    pub fn new(threads: usize) -> Places {
        Places { computing: Arc::default(), threads }
    }

    /// Has a thread look for what comes while another computes, until there are no places any more.
    ///
    /// Of the threads that have nothing to do, tokio has one wait for sockets and timers. Where that one computes, the
    /// others sleep on, unless there is work for one of them: here some is.
    pub fn watch(&self, runtime: Handle) -> std::io::Result<()> {
        let computing = Arc::downgrade(&self.computing);
        let look = move || {
            while let Some(computing) = computing.upgrade() {
                if computing.load(Ordering::Relaxed) > 0 {
                    runtime.spawn(async {});
                }
                drop(computing);
                thread::sleep(LOOK);
            }
        };
        thread::Builder::new().name("modelyard-look".to_owned()).spawn(look)?;
        Ok(())
    }

    /// Whether all threads but one compute.
    pub fn is_scarce(&self) -> bool {
        self.computing.load(Ordering::Relaxed) + 1 >= self.threads
    }

    /// Computes on this thread. The last one hands what it has to serve to another thread, which costs some microseconds.
    pub fn compute(&self, work: impl FnOnce()) {
        let last = self.computing.fetch_add(1, Ordering::Relaxed) + 1 >= self.threads;
        let _end = End(&self.computing);
        if last {
            tokio::task::block_in_place(work);
        } else {
            work();
        }
    }
}

/// A thread computes no more.
struct End<'a>(&'a AtomicUsize);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
