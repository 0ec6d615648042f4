//! Connections: accepting them, the signals, and the end after the last answer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio_io_timeout::TimeoutStream;
use tower::ServiceExt;

use super::layers::Client;
use super::state::Server;
use crate::events::Event;

/// The time within which a client must have sent the header of a request.
const HEADER_TIME: Duration = Duration::from_secs(10);
/// Connections that are open at once; further ones wait.
const CONNECTIONS: usize = 1024;
/// How long the listener rests after the system has refused a connection, as it does without free file descriptors.
const REST: Duration = Duration::from_millis(50);

/// What the process is asked by a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signal {
    End,
    #[cfg(unix)]
    Reload,
}

/// Accepts connections until the process is asked to end, and then waits until all requests are answered, for as long as one may
/// take.
///
/// # Errors
/// If the address cannot be listened on, or a model's thread has ended by a defect.
pub(super) async fn accept(
    listen: SocketAddr,
    router: Router,
    server: Arc<Server>,
    defect: &Notify,
) -> Result<()> {
    let mut signals = Signals::new().context("signals cannot be received")?;
    let listener = TcpListener::bind(listen)
        .await
        .with_context(|| format!("--listen {listen}: cannot be listened on"))?;
    let address = listener.local_addr().context("the address is unknown")?;
    server.events.emit(Event::Serving { address: address.to_string(), models: server.models.all().len() });
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await.ok();
            (listener.accept().await, place)
        };
        tokio::select! {
            (accepted, place) = next => match accepted {
                Ok((stream, client)) => {
                    let connection = connection(stream, client, router.clone(), server.time_limit);
                    let connection = graceful.watch(connection);
                    tokio::spawn(async move {
                        // An error is that of the client: it sent no HTTP, or left.
                        let _ = connection.await;
                        drop(place);
                    });
                }
                Err(error) => {
                    server.events.emit(Event::warning(format!("a connection cannot be accepted: {error}")));
                    tokio::time::sleep(REST).await;
                }
            },
            signal = signals.next() => match signal {
                Signal::End => break,
                #[cfg(unix)]
                Signal::Reload => {
                    let server = Arc::clone(&server);
                    tokio::task::spawn_blocking(move || server.models.reload());
                }
            },
            () = defect.notified() => bail!("the thread of a model has ended: a bug in the program"),
        }
    }
    drop(listener);
    server.events.emit(Event::notice("ending: requests that have begun are answered"));
    let asked_again = async { while signals.next().await != Signal::End {} };
    tokio::select! {
        () = graceful.shutdown() => {}
        () = tokio::time::sleep(server.time_limit) => {
            server.events.emit(Event::warning("some requests took too long, and were not answered"));
        }
        () = asked_again => {}
    }
    Ok(())
}

/// A connection of HTTP/1.1, which asks the router. A client that reads nothing for `time_limit` is left.
fn connection(
    stream: TcpStream,
    client: SocketAddr,
    router: Router,
    time_limit: Duration,
) -> impl hyper_util::server::graceful::GracefulConnection {
    // Answers are small, and should not wait for more.
    let _ = stream.set_nodelay(true);
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(time_limit));
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Client(client));
        router.clone().oneshot(request)
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME)
        .serve_connection(TokioIo::new(Box::pin(stream)), service)
}

/// The signals of the process.
#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hang_up: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// The next signal: Ctrl-C or SIGTERM to end, SIGHUP to load models again.
    async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::End,
            _ = self.terminate.recv() => Signal::End,
            _ = self.hang_up.recv() => Signal::Reload,
        }
    }
}

/// Ctrl-C, where there are no other signals.
#[cfg(windows)]
struct Signals(tokio::signal::windows::CtrlC);

#[cfg(windows)]
impl Signals {
    fn new() -> std::io::Result<Self> {
        tokio::signal::windows::ctrl_c().map(Self)
    }

    async fn next(&mut self) -> Signal {
        self.0.recv().await;
        Signal::End
    }
}
