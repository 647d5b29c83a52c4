//! The thread of a client.

use softdpu_sys::affinity;

/// Which programs a client goes before, where it is allowed to. If it is not, the figures are only noisier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// None: a server that requests go on to needs the CPU as well.
    Normal,
    /// Those of its session: nice −20.
    Nice,
    /// All, as a data plane's core: nice −20 of thread and session. Otherwise other programs take turns with the
    /// client, which has nothing in flight meanwhile.
    Session,
}

/// Runs `client` on a thread of its own, which is pinned to `cpu`. `failed` makes an error of a sentence.
///
/// # Errors
/// Those of `client`, and where the CPU cannot be used.
pub fn on_cpu<T: Send, E: Send>(
    cpu: usize,
    priority: Priority,
    failed: fn(String) -> E,
    client: impl FnOnce() -> Result<T, E> + Send,
) -> Result<T, E> {
    std::thread::scope(|scope| {
        let run = move || {
            affinity::pin_to(cpu).map_err(|error| failed(format!("cannot run on CPU {cpu}: {error}")))?;
            if priority != Priority::Normal {
                let _ = affinity::highest_nice();
            }
            let _session = (priority == Priority::Session).then(affinity::SessionFirst::new);
            client()
        };
        scope.spawn(run).join().unwrap_or_else(|_| Err(failed("the client's thread panicked".to_owned())))
    })
}
