//! Which blocks of a snapshot hold something, or have changed: is the stream one whole, part by part?
use super::super::proto::{
    BlockMetadata, BlockMetadataType, GetMetadataAllocatedResponse, GetMetadataDeltaResponse,
};
use super::Fault;

/// Whether the blocks of a list are all of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// They are.
    Fixed,
    /// Each has its own.
    Variable,
}

/// A range of bytes of a volume, not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its first byte.
    pub start: i64,
    /// The byte after its last.
    pub end: i64,
}

/// One part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// How its blocks are cut. The first one may be shorter here: what lies before the offset asked for is cut off.
    pub kind: BlockKind,
    /// What the volume has, in bytes.
    pub capacity: i64,
    /// In rising order. May be empty: it is the end of the stream that says that no more will come.
    pub blocks: Vec<Block>,
}

/// A part as the wire has it.
pub(crate) struct Part {
    kind: i32,
    capacity: i64,
    blocks: Vec<BlockMetadata>,
}

impl From<GetMetadataAllocatedResponse> for Part {
    fn from(part: GetMetadataAllocatedResponse) -> Self {
        Self {
            kind: part.block_metadata_type,
            capacity: part.volume_capacity_bytes,
            blocks: part.block_metadata,
        }
    }
}

impl From<GetMetadataDeltaResponse> for Part {
    fn from(part: GetMetadataDeltaResponse) -> Self {
        Self {
            kind: part.block_metadata_type,
            capacity: part.volume_capacity_bytes,
            blocks: part.block_metadata,
        }
    }
}

/// What is known of a stream so far. After a fault nothing of the stream is to be believed.
#[derive(Clone, Debug)]
pub struct Sequence {
    most: usize,
    from: i64,
    told: Option<(BlockKind, i64)>,
    size: Option<i64>,
    end: Option<i64>,
}

impl Sequence {
    /// A stream that was asked for from this offset, with at most `most` blocks in a part; 0 for any number.
    pub fn new(from: i64, most: i32) -> Self {
        Self { most: usize::try_from(most).unwrap_or(0), from, told: None, size: None, end: None }
    }

    /// Where the same question goes on if the stream breaks now: after the last byte that was told.
    pub fn resume_at(&self) -> i64 {
        self.end.unwrap_or(self.from).max(self.from)
    }

    /// The next part of `GetMetadataAllocated`.
    pub fn allocated(&mut self, part: GetMetadataAllocatedResponse) -> Result<Blocks, Fault> {
        self.take(part.into())
    }

    /// The next part of `GetMetadataDelta`.
    pub fn delta(&mut self, part: GetMetadataDeltaResponse) -> Result<Blocks, Fault> {
        self.take(part.into())
    }

    pub(crate) fn take(&mut self, part: Part) -> Result<Blocks, Fault> {
        let wrong = |why| Err(Fault::WrongBlocks { why });
        let kind = match BlockMetadataType::try_from(part.kind) {
            Ok(BlockMetadataType::FixedLength) => BlockKind::Fixed,
            Ok(BlockMetadataType::VariableLength) => BlockKind::Variable,
            Ok(BlockMetadataType::Unknown) | Err(_) => return wrong("it does not say how blocks are cut"),
        };
        if part.capacity <= 0 {
            return wrong("the volume's capacity is missing");
        }
        if *self.told.get_or_insert((kind, part.capacity)) != (kind, part.capacity) {
            return wrong("how blocks are cut, or the volume's capacity, changes within the stream");
        }
        if self.most > 0 && part.blocks.len() > self.most {
            return wrong("a part holds more blocks than were asked for");
        }
        let mut blocks = Vec::with_capacity(part.blocks.len());
        for block in &part.blocks {
            blocks.push(self.block(kind, part.capacity, block)?);
        }
        Ok(Blocks { kind, capacity: part.capacity, blocks })
    }

    fn block(&mut self, kind: BlockKind, capacity: i64, block: &BlockMetadata) -> Result<Block, Fault> {
        let wrong = |why| Err(Fault::WrongBlocks { why });
        let (start, size) = (block.byte_offset, block.size_bytes);
        if start < 0 || size <= 0 {
            return wrong("a block is empty, or begins before the volume");
        }
        let Some(end) = start.checked_add(size) else { return wrong("a block ends beyond all numbers") };
        if kind == BlockKind::Fixed && *self.size.get_or_insert(size) != size {
            return wrong("blocks of one size differ in it");
        }
        // Blocks of one size may go beyond the end of a volume that is no multiple of it.
        if start >= capacity || (kind == BlockKind::Variable && end > capacity) {
            return wrong("a block lies beyond the volume");
        }
        match self.end {
            Some(before) if start < before => return wrong("blocks overlap, or do not rise"),
            None if end <= self.from => return wrong("it begins before the offset that was asked for"),
            Some(_) | None => {}
        }
        self.end = Some(end);
        Ok(Block { start: start.max(self.from), end })
    }
}
