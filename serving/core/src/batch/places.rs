//! The threads of the transport that compute.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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
