//! Names: directories as the running system sees them and as the device has them.

use super::contents::Keeping;
use super::inode::{Inode, Losing};
use crate::path::below;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::Path;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeId(usize);

const ROOT: NodeId = NodeId(0);

enum Node {
    File(Inode),
    Directory(Directory),
}

#[derive(Default)]
struct Directory {
    seen: BTreeMap<String, NodeId>,
    durable: BTreeMap<String, NodeId>,
}

/// The files and directories of a disk, and their names. Nodes are never removed before a restart: a file
/// outlives its name, and a crash may bring the name back.
pub(super) struct Tree {
    nodes: Vec<Node>,
    pub(super) keeping: Keeping,
    pending: Vec<Edits>,
}

/// Changes of names that survive together or not at all.
type Edits = Vec<Edit>;

struct Edit {
    dir: NodeId,
    name: String,
    /// The node that the name stands for from now on.
    node: Option<NodeId>,
}

impl Tree {
    pub(super) fn new(keeping: Keeping) -> Tree {
        Tree { nodes: vec![Node::Directory(Directory::default())], keeping, pending: Vec::new() }
    }

    pub(super) fn find(&self, path: &str) -> io::Result<NodeId> {
        let mut node = ROOT;
        for name in names(path)? {
            node = *self.entries(node)?.get(name).ok_or(ErrorKind::NotFound)?;
        }
        Ok(node)
    }

    /// The directory a path is in, which must exist, and its last name.
    fn find_parent<'a>(&self, path: &'a str) -> io::Result<(NodeId, &'a str)> {
        let names = names(path)?;
        let (name, parents) = names.split_last().ok_or(ErrorKind::InvalidInput)?;
        let mut dir = ROOT;
        for parent in parents {
            dir = *self.entries(dir)?.get(*parent).ok_or(ErrorKind::NotFound)?;
        }
        self.entries(dir)?;
        Ok((dir, name))
    }

    pub(super) fn file(&self, node: NodeId) -> io::Result<&Inode> {
        match &self.nodes[node.0] {
            Node::File(inode) => Ok(inode),
            Node::Directory(_) => Err(ErrorKind::IsADirectory.into()),
        }
    }

    pub(super) fn file_mut(&mut self, node: NodeId) -> io::Result<&mut Inode> {
        match &mut self.nodes[node.0] {
            Node::File(inode) => Ok(inode),
            Node::Directory(_) => Err(ErrorKind::IsADirectory.into()),
        }
    }

    pub(super) fn is_directory(&self, path: &str) -> bool {
        self.find(path).is_ok_and(|node| self.entries(node).is_ok())
    }

    fn entries(&self, node: NodeId) -> io::Result<&BTreeMap<String, NodeId>> {
        match &self.nodes[node.0] {
            Node::Directory(directory) => Ok(&directory.seen),
            Node::File(_) => Err(ErrorKind::NotADirectory.into()),
        }
    }

    fn directory(&mut self, node: NodeId) -> &mut Directory {
        match &mut self.nodes[node.0] {
            Node::Directory(directory) => directory,
            Node::File(_) => unreachable!("edits are made in directories only"),
        }
    }

    pub(super) fn list(&self, path: &str) -> io::Result<Vec<String>> {
        match self.find(path) {
            Ok(node) => Ok(self.entries(node)?.keys().cloned().collect()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    fn edit(&mut self, edits: Edits) {
        for Edit { dir, name, node } in &edits {
            set(&mut self.directory(*dir).seen, name, *node);
        }
        self.pending.push(edits);
    }

    pub(super) fn create_file(&mut self, path: &str) -> io::Result<NodeId> {
        let (dir, name) = self.find_parent(path)?;
        Ok(self.create(dir, name, Node::File(Inode::new(self.keeping))))
    }

    fn create(&mut self, dir: NodeId, name: &str, node: Node) -> NodeId {
        let id = NodeId(self.nodes.len());
        self.nodes.push(node);
        self.edit(vec![Edit { dir, name: name.to_owned(), node: Some(id) }]);
        id
    }

    /// Creates one directory, whose parent must exist.
    pub(super) fn create_dir(&mut self, path: &str) -> io::Result<()> {
        match self.find(path) {
            Ok(node) => match &self.nodes[node.0] {
                Node::Directory(_) => Ok(()),
                Node::File(_) => Err(ErrorKind::AlreadyExists.into()),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let (dir, name) = self.find_parent(path)?;
                self.create(dir, name, Node::Directory(Directory::default()));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let (from_dir, from_name) = self.find_parent(from)?;
        // The new parent is looked for before the file, as the kernel does.
        let to_parent = if is_above(to, from) { None } else { Some(self.find_parent(to)?) };
        let node = *self.entries(from_dir)?.get(from_name).ok_or(ErrorKind::NotFound)?;
        let is_directory = self.file(node).is_err();
        if is_directory && is_above(from, to) {
            return Err(ErrorKind::InvalidInput.into());
        }
        let (to_dir, to_name) = to_parent.ok_or(ErrorKind::DirectoryNotEmpty)?;
        if let Some(replaced) = self.entries(to_dir)?.get(to_name) {
            if *replaced == node {
                return Ok(());
            }
            match &self.nodes[replaced.0] {
                Node::File(_) if is_directory => return Err(ErrorKind::NotADirectory.into()),
                Node::Directory(_) if !is_directory => return Err(ErrorKind::IsADirectory.into()),
                Node::Directory(directory) if !directory.seen.is_empty() => {
                    return Err(ErrorKind::DirectoryNotEmpty.into());
                }
                Node::File(_) | Node::Directory(_) => {}
            }
        }
        self.edit(vec![
            Edit { dir: from_dir, name: from_name.to_owned(), node: None },
            Edit { dir: to_dir, name: to_name.to_owned(), node: Some(node) },
        ]);
        Ok(())
    }

    pub(super) fn remove_file(&mut self, path: &str) -> io::Result<()> {
        self.file(self.find(path)?)?;
        self.unlink(path)
    }

    /// Removes a name, whatever it is the name of.
    pub(super) fn unlink(&mut self, path: &str) -> io::Result<()> {
        let (dir, name) = self.find_parent(path)?;
        self.edit(vec![Edit { dir, name: name.to_owned(), node: None }]);
        Ok(())
    }

    /// The paths of everything at and below a path, contents before their directory; none when it does not
    /// exist.
    pub(super) fn below(&self, path: &str) -> io::Result<Vec<String>> {
        let node = match self.find(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            node => node?,
        };
        self.entries(node)?;
        let mut found = Vec::new();
        self.below_collect(path, node, &mut found);
        Ok(found)
    }

    fn below_collect(&self, path: &str, node: NodeId, found: &mut Vec<String>) {
        if let Node::Directory(directory) = &self.nodes[node.0] {
            for (name, child) in &directory.seen {
                self.below_collect(&format!("{path}/{name}"), *child, found);
            }
        }
        found.push(path.to_owned());
    }

    /// Makes the names in a directory durable, and no others: of a rename into another directory, this half.
    /// Answers whether there was anything to do.
    pub(super) fn sync_dir(&mut self, path: &str) -> io::Result<bool> {
        let dir = self.find(path)?;
        self.entries(dir)?;
        Ok(self.sync_edits(|edit| edit.dir == dir))
    }

    /// Makes only the names that lead to a path durable.
    pub(super) fn sync_path(&mut self, path: &str) -> io::Result<bool> {
        let mut dir = ROOT;
        let mut steps = BTreeSet::new();
        for name in names(path)? {
            steps.insert((dir, name.to_owned()));
            dir = *self.entries(dir)?.get(name).ok_or(ErrorKind::NotFound)?;
        }
        Ok(self.sync_edits(|edit| steps.contains(&(edit.dir, edit.name.clone()))))
    }

    fn sync_edits(&mut self, covered: impl Fn(&Edit) -> bool) -> bool {
        let mut any = false;
        for edits in std::mem::take(&mut self.pending) {
            // A directory is never in two places: file systems move it in one transaction.
            let is_whole = edits.len() > 1 && edits.iter().any(|edit| self.names_directory(edit));
            let all = is_whole && edits.iter().any(&covered);
            let (synced, rest): (Edits, Edits) = edits.into_iter().partition(|edit| all || covered(edit));
            any |= !synced.is_empty();
            for Edit { dir, name, node } in synced {
                set(&mut self.directory(dir).durable, &name, node);
            }
            if !rest.is_empty() {
                self.pending.push(rest);
            }
        }
        any
    }

    fn names_directory(&self, edit: &Edit) -> bool {
        edit.node.is_some_and(|node| matches!(self.nodes[node.0], Node::Directory(_)))
    }

    /// Leaves the names and files that a machine finds after it lost power.
    pub(super) fn lose_power(&mut self, loss: &mut Losing) {
        for edits in std::mem::take(&mut self.pending) {
            let kept = match loss {
                Losing::All => false,
                Losing::Nothing => true,
                Losing::Random(random) => random.one_in(2),
            };
            for Edit { dir, name, node } in edits.into_iter().filter(|_| kept) {
                set(&mut self.directory(dir).durable, &name, node);
            }
        }
        for node in &mut self.nodes {
            match node {
                Node::File(inode) => inode.lose_power(loss),
                Node::Directory(directory) => directory.seen = directory.durable.clone(),
            }
        }
    }

    pub(super) fn outlive_process(&mut self) {
        for node in &mut self.nodes {
            if let Node::File(inode) = node {
                inode.outlive_process();
            }
        }
    }

    /// The bytes that all files together take.
    pub(super) fn allocated_bytes(&self) -> u64 {
        self.allocated_below(ROOT)
    }

    fn allocated_below(&self, node: NodeId) -> u64 {
        match &self.nodes[node.0] {
            Node::File(inode) => inode.seen.allocated_bytes(),
            Node::Directory(directory) => {
                directory.seen.values().map(|child| self.allocated_below(*child)).sum()
            }
        }
    }

    /// Files that have a name, with their paths.
    pub(super) fn files(&self) -> Vec<(String, &Inode)> {
        let mut paths = Vec::new();
        self.below_collect("", ROOT, &mut paths);
        let named = paths.iter().filter_map(|path| {
            let path = path.strip_prefix('/')?;
            let inode = self.file(self.find(path).ok()?).ok()?;
            Some((path.to_owned(), inode))
        });
        named.collect()
    }
}

/// Whether one path is a directory that the other is in.
fn is_above(path: &str, other: &str) -> bool {
    path.is_empty() || other.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'))
}

fn set(entries: &mut BTreeMap<String, NodeId>, name: &str, node: Option<NodeId>) {
    match node {
        Some(node) => entries.insert(name.to_owned(), node),
        None => entries.remove(name),
    };
}

fn names(path: &str) -> io::Result<Vec<&str>> {
    below(Path::new("/"), path)?;
    Ok(if path.is_empty() { Vec::new() } else { path.split('/').collect() })
}
