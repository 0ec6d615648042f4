//! Encrypted endpoints (Iroh: QUIC), and how a worker admits a trainer before burn reads anything: burn reads a message of up to 1 GiB
//! before it looks at a token. So a trainer first shows the token in a protocol of its own, and burn's is open to the keys that have.
//! Until then, a connection can send little, and few connections are open at a time.

use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use burn::server::{BURN_REMOTE_ALPN, RemoteServer};
use iroh::endpoint::{
    Accepting, BindOpts, Builder, ConnectError, ConnectingError, Connection, ConnectionError,
    PortmapperConfig, QuicTransportConfig, TransportErrorCode, VarInt, presets,
};
use iroh::protocol::{AcceptError, DynProtocolHandler, ProtocolHandler, Router};
use iroh::{Endpoint, EndpointAddr, EndpointId, RelayMode, SecretKey};
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::token::Token;
use crate::workers::Failure;

/// The protocol in which a trainer shows the token: it sends the token, and the worker answers with one byte.
const ADMISSION: &[u8] = b"vitrine/admission/1";
/// How long each step of an admission may take.
const TIME_TO_ADMIT: Duration = Duration::from_secs(10);
/// How long a worker waits for its connections to close.
const TIME_TO_CLOSE: Duration = Duration::from_secs(3);
/// What a connection may send before it is read, in bytes.
const WINDOW: VarInt = VarInt::from_u32(8 << 20);
/// What a stranger's connection may send before it is read, in bytes.
const WINDOW_OF_STRANGERS: VarInt = VarInt::from_u32(4 * Token::LONGEST as u32);
/// The most connections of strangers at a time.
const STRANGERS: usize = 256;
/// The answers to a token.
const ADMITTED: u8 = 1;
const REFUSED: u8 = 0;
/// The TLS alert `unknown_ca`, with which a connection ends if the other side has another key than was asked for.
const UNKNOWN_KEY: u8 = 48;

/// An endpoint without relays. Within one machine, many packets go out with one system call; elsewhere that is off, since Iroh 1.4 stalls
/// where a network card does not take them (n0-computer/iroh#4555).
fn builder(within_machine: bool, window: VarInt) -> Builder {
    let transport = QuicTransportConfig::builder()
        .enable_segmentation_offload(within_machine)
        .receive_window(window)
        .stream_receive_window(WINDOW)
        .datagram_receive_buffer_size(None);
    Endpoint::builder(presets::Minimal)
        .relay_mode(RelayMode::Disabled)
        .portmapper_config(PortmapperConfig::Disabled)
        .transport_config(transport.build())
}

/// A worker's endpoint, which serves until it is shut down.
pub(super) struct Served(Router);

impl Served {
    /// Serves at an address, under a key, the trainers that show the token.
    ///
    /// # Errors
    /// If the port is taken.
    pub(super) async fn start(
        server: RemoteServer,
        address: SocketAddr,
        key: SecretKey,
        token: Token,
    ) -> Result<Self> {
        let mut builder = builder(address.ip().is_loopback(), WINDOW_OF_STRANGERS)
            .secret_key(key)
            .clear_ip_transports()
            .bind_addr(address)?;
        if address.ip().is_unspecified() {
            // The other version of IP, too, where the machine has it.
            let other: IpAddr =
                if address.is_ipv4() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
            let optional = BindOpts::default().set_is_required(false);
            builder = builder.bind_addr_with_opts(SocketAddr::new(other, address.port()), optional)?;
        }
        let port = || format!("--listen: port {}", address.port());
        let endpoint = builder.bind().await.with_context(port)?;
        let admitted = Admitted { keys: Arc::default(), strangers: Arc::new(Semaphore::new(STRANGERS)) };
        let burn: Box<dyn DynProtocolHandler> = server.into_protocol(&endpoint)?.into();
        let router = Router::builder(endpoint)
            .accept(ADMISSION, Admission { token, admitted: admitted.clone() })
            .accept(BURN_REMOTE_ALPN, Gate { admitted, burn })
            .spawn();
        Ok(Self(router))
    }

    /// Waits until nothing is served any more.
    pub(super) async fn ended(&self) {
        self.0.endpoint().closed().await;
    }

    /// Closes all connections, so that the trainers know.
    pub(super) async fn shut_down(self) {
        // Whether they have heard of it, or not: the process ends.
        let _ = timeout(TIME_TO_CLOSE, self.0.shutdown()).await;
    }
}

/// The keys of the trainers that have shown the token, and places for strangers.
#[derive(Clone, Debug)]
struct Admitted {
    keys: Arc<Mutex<HashSet<EndpointId>>>,
    strangers: Arc<Semaphore>,
}

impl Admitted {
    fn insert(&self, key: EndpointId) {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
    }

    fn contains(&self, key: EndpointId) -> bool {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner).contains(&key)
    }

    /// A place for a stranger, if one is free.
    fn place(&self) -> Result<SemaphorePermit<'_>, AcceptError> {
        self.strangers.try_acquire().map_err(AcceptError::from_err)
    }

    /// The connection of a stranger, who shows its key in time.
    async fn shake_hands(&self, accepting: Accepting) -> Result<Connection, AcceptError> {
        let _place = self.place()?;
        Ok(timeout(TIME_TO_ADMIT, accepting).await.map_err(AcceptError::from_err)??)
    }
}

/// Admits the trainers that show the token.
#[derive(Debug)]
struct Admission {
    token: Token,
    admitted: Admitted,
}

impl Admission {
    async fn judge(&self, connection: &Connection) -> Result<(), AcceptError> {
        let (mut sender, mut receiver) = connection.accept_bi().await?;
        let shown = receiver.read_to_end(Token::LONGEST).await.map_err(AcceptError::from_err)?;
        let answer = if self.token.is(&shown) {
            self.admitted.insert(connection.remote_id());
            ADMITTED
        } else {
            REFUSED
        };
        sender.write_all(&[answer]).await.map_err(AcceptError::from_err)?;
        sender.finish()?;
        // The trainer closes when it has read the answer.
        connection.closed().await;
        Ok(())
    }
}

impl ProtocolHandler for Admission {
    async fn on_accepting(&self, accepting: Accepting) -> Result<Connection, AcceptError> {
        self.admitted.shake_hands(accepting).await
    }

    async fn accept(&self, connection: Connection) -> Result<(), AcceptError> {
        let _place = self.admitted.place()?;
        let judged = timeout(TIME_TO_ADMIT, self.judge(&connection)).await;
        connection.close(VarInt::from_u32(0), b"");
        judged.unwrap_or(Ok(()))
    }
}

/// Lets admitted trainers through to burn, and nobody else.
#[derive(Debug)]
struct Gate {
    admitted: Admitted,
    burn: Box<dyn DynProtocolHandler>,
}

impl ProtocolHandler for Gate {
    async fn on_accepting(&self, accepting: Accepting) -> Result<Connection, AcceptError> {
        self.admitted.shake_hands(accepting).await
    }

    async fn accept(&self, connection: Connection) -> Result<(), AcceptError> {
        if self.admitted.contains(connection.remote_id()) {
            connection.set_receive_window(WINDOW);
            return self.burn.accept(connection).await;
        }
        connection.close(VarInt::from_u32(1), b"the token was not shown");
        Ok(())
    }

    async fn shutdown(&self) {
        self.burn.shutdown().await;
    }
}

/// A trainer's endpoint, with the threads that serve it.
pub(super) struct Dialer {
    runtime: Runtime,
    endpoint: Endpoint,
}

/// The trainer's endpoint to workers on this machine.
static WITHIN_MACHINE: LazyLock<Result<Dialer, String>> = LazyLock::new(|| Dialer::bind(true));
/// The trainer's endpoint to workers anywhere.
static ANYWHERE: LazyLock<Result<Dialer, String>> = LazyLock::new(|| Dialer::bind(false));

impl Dialer {
    /// The endpoint that reaches these addresses.
    ///
    /// # Errors
    /// If no socket can be opened.
    pub(super) fn to(addresses: &[SocketAddr]) -> Result<&'static Self, Failure> {
        let within_machine = addresses.iter().all(|address| address.ip().is_loopback());
        let dialer: &'static Result<Self, String> = if within_machine { &WITHIN_MACHINE } else { &ANYWHERE };
        dialer.as_ref().map_err(|problem| Failure::Lost(problem.clone()))
    }

    fn bind(within_machine: bool) -> Result<Self, String> {
        let cannot = |problem: &dyn fmt::Display| format!("this process can make no connections ({problem})");
        // Burn waits for this runtime, so it has a thread of its own.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("vitrine-network")
            .enable_all()
            .build()
            .map_err(|error| cannot(&error))?;
        let endpoint =
            runtime.block_on(builder(within_machine, WINDOW).bind()).map_err(|error| cannot(&error))?;
        Ok(Self { runtime, endpoint })
    }

    /// The endpoint for burn.
    pub(super) fn endpoint(&self) -> Endpoint {
        self.endpoint.clone()
    }

    /// Shows the token to a worker.
    ///
    /// # Errors
    /// If the worker cannot be reached, has another key, or refuses the token.
    pub(super) fn show(&self, token: &Token, worker: EndpointAddr) -> Result<(), Failure> {
        let shown =
            self.runtime.block_on(async { timeout(TIME_TO_ADMIT, self.try_show(token, worker)).await });
        let unreachable = |reason: String| Failure::Lost(format!("it cannot be reached ({reason})"));
        match shown {
            Ok(Ok(ADMITTED)) => Ok(()),
            Ok(Ok(_)) => Err(Failure::Refused("the token is wrong (--token-file)".to_owned())),
            Ok(Err(error)) if shows_another_key(&error) => Err(Failure::Refused(
                "its key is not the one of its line in --workers, as if its --key file was made anew: replace the line by \
                 the one that it prints now"
                    .to_owned(),
            )),
            Ok(Err(error)) => Err(unreachable(format!("{error:#}"))),
            Err(_) => Err(unreachable(format!("no answer in {} seconds", TIME_TO_ADMIT.as_secs()))),
        }
    }

    async fn try_show(&self, token: &Token, worker: EndpointAddr) -> Result<u8> {
        let connection = self.endpoint.connect(worker, ADMISSION).await?;
        let (mut sender, mut receiver) = connection.open_bi().await?;
        sender.write_all(token.secret().as_bytes()).await?;
        sender.finish()?;
        let mut answer = [REFUSED];
        receiver.read_exact(&mut answer).await?;
        connection.close(VarInt::from_u32(0), b"");
        Ok(answer[0])
    }
}

/// Whether a worker answers at the address, but under another key.
fn shows_another_key(error: &anyhow::Error) -> bool {
    let Some(ConnectError::Connecting { source, .. }) = error.downcast_ref() else { return false };
    let ConnectingError::ConnectionError { source, .. } = source else { return false };
    let ConnectionError::TransportError(error) = source else { return false };
    error.code == TransportErrorCode::crypto(UNKNOWN_KEY)
}
