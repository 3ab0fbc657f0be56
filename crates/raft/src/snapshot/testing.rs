//! A transfer without a network.

use crate::snapshot::SnapshotStore;
use crate::snapshot::reception::{ReceiveError, Reception};
use crate::snapshot::stored::{PieceReader, Stored};
use std::sync::Arc;

/// Receives `stored` into another store, whole.
pub(crate) async fn carry(stored: &Arc<Stored>, to: &Arc<SnapshotStore>) -> Arc<Stored> {
    let mut reception = begin(stored, to).await.unwrap();
    carry_pieces(stored, &mut reception, usize::MAX).await.unwrap();
    reception.finish().await.unwrap()
}

pub(crate) async fn begin(stored: &Arc<Stored>, to: &Arc<SnapshotStore>) -> Result<Reception, ReceiveError> {
    Reception::begin(to, stored.manifest.clone(), stored.encoded.clone()).await
}

/// Receives up to so many of the pieces that are missing; how many it were.
pub(crate) async fn carry_pieces(
    stored: &Arc<Stored>,
    reception: &mut Reception,
    count_max: usize,
) -> Result<usize, ReceiveError> {
    let mut reader = PieceReader::new(stored.clone());
    let missing: Vec<_> = stored.manifest.pieces_from(reception.cursor()).take(count_max).collect();
    for &piece in &missing {
        let data = reader.read(piece).await.unwrap();
        reception.write(data).await?.unwrap();
    }
    Ok(missing.len())
}
