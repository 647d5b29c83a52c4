//! Why packets are refused, and why connections end.

use crate::verdict::reasons;

reasons! {
    /// Why a packet is not one of a connection.
    enum Refused;
    /// It is in the middle of a connection that is not known, and none is picked up.
    NoConnection = "no-connection",
    /// TCP flags that no honest segment has together.
    TcpFlags = "tcp-flags",
    /// It contradicts the handshake that is under way.
    Handshake = "tcp-handshake",
    /// A reset out of place.
    Reset = "tcp-reset",
    /// The zone's share of the table is used up, and none of its connections is half open or over.
    ShareFull = "connection-share-full",
    /// The table is full, likewise.
    TableFull = "connection-table-full",
    /// The zone has no share.
    NoShare = "no-connection-share",
}

reasons! {
    /// Why a connection has ended.
    enum End;
    /// Both sides have closed it.
    Closed = "closed",
    /// It was reset.
    Reset = "reset",
    /// No packet came for too long.
    Expired = "expired",
    /// Its zone needed the room.
    Evicted = "evicted",
    /// Its zone is gone.
    Forgotten = "forgotten",
}
