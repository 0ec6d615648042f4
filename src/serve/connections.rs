//! Connections: accepting them, the signals, and the end after the last answer.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tower::ServiceExt;

use super::observe::Client;
use super::server::Server;
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
    Reload,
}

/// Accepts connections until the process is asked to end, and then waits until all requests are answered, for as long as one may
/// take.
///
/// # Errors
/// If the address cannot be listened on.
pub(super) async fn accept(listen: SocketAddr, router: Router, server: Arc<Server>) -> Result<()> {
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
                    let connection = connection(stream, client, router.clone());
                    let connection = graceful.watch(connection);
                    tokio::spawn(async move {
                        // An error is that of the client: it sent no HTTP, or left.
                        let _ = connection.await;
                        drop(place);
                    });
                }
                Err(_) => tokio::time::sleep(REST).await,
            },
            signal = signals.next() => match signal {
                Signal::End => break,
                Signal::Reload => {
                    let server = Arc::clone(&server);
                    tokio::task::spawn_blocking(move || server.models.reload());
                }
            },
        }
    }
    drop(listener);
    server.is_ending.store(true, Ordering::Relaxed);
    server.events.emit(Event::notice("ending: requests that have begun are answered"));
    let mut all_answered = pin!(graceful.shutdown());
    tokio::select! {
        () = &mut all_answered => {}
        () = tokio::time::sleep(server.time_limit) => {
            server.events.emit(Event::warning("some requests took too long, and were not answered"));
        }
        // A second signal ends at once.
        _ = signals.next() => {}
    }
    Ok(())
}

/// A connection of HTTP/1.1, which asks the router.
fn connection(
    stream: TcpStream,
    client: SocketAddr,
    router: Router,
) -> impl hyper_util::server::graceful::GracefulConnection {
    // Answers are small, and should not wait for more.
    let _ = stream.set_nodelay(true);
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Client(client));
        router.clone().oneshot(request)
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME)
        .serve_connection(TokioIo::new(stream), service)
}

/// The signals of the process.
struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    hang_up: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            Ok(Self { terminate: signal(SignalKind::terminate())?, hang_up: signal(SignalKind::hangup())? })
        }
        #[cfg(not(unix))]
        Ok(Self {})
    }

    /// The next signal: Ctrl-C or SIGTERM to end, SIGHUP to load models again.
    async fn next(&mut self) -> Signal {
        #[cfg(unix)]
        tokio::select! {
            _ = tokio::signal::ctrl_c() => Signal::End,
            _ = self.terminate.recv() => Signal::End,
            _ = self.hang_up.recv() => Signal::Reload,
        }
        #[cfg(not(unix))]
        {
            let _ = tokio::signal::ctrl_c().await;
            Signal::End
        }
    }
}
