//! What every command works with: the server, the terminal, the namespace, and what went wrong so far.
//!
//! Output goes through the writers given here and nowhere else, so that a test can read it.
use std::io::{Read, Write};
use std::path::PathBuf;
use std::rc::Rc;

use kube::Client;
use serde_json::Value;

use super::args::{Options, Selection};
use super::failure::{Exit, Failure};
use super::kinds::{Kinds, Resource};
use super::kubeconfig::Places;
use super::manifest;
use super::wire::{Answer, Change, Form, Step, Watch, Wire};

/// The person's side: where input comes from and output goes to.
pub struct Terminal<'a> {
    /// Read by `-f -`.
    pub input: &'a mut dyn Read,
    /// Results.
    pub out: &'a mut dyn Write,
    /// Errors, warnings and notes.
    pub err: &'a mut dyn Write,
}

/// One run of one command.
pub(crate) struct Session<'a> {
    pub(crate) wire: Wire,
    pub(crate) terminal: Terminal<'a>,
    /// `-n`, if given.
    pub(crate) asked_namespace: Option<String>,
    /// The namespace of the kubeconfig's context.
    pub(crate) default_namespace: String,
    pub(crate) data_dir: PathBuf,
    places: Places,
    kinds: Option<Rc<Kinds>>,
    worst: Exit,
}

/// One object named exactly, with its manifest where it came from a file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Item {
    pub(crate) resource: Resource,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// The manifest, `null` where only a name was given.
    pub(crate) object: Value,
}

impl Item {
    pub(crate) fn path(&self) -> String {
        self.resource.item(&self.namespace, &self.name)
    }

    pub(crate) fn label(&self) -> String {
        self.resource.label(&self.name)
    }
}

/// What a person points at: a kind and perhaps one object of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) resource: Resource,
    pub(crate) name: Option<String>,
}

impl<'a> Session<'a> {
    pub(crate) fn new(client: Client, terminal: Terminal<'a>, options: &Options) -> Self {
        Self {
            default_namespace: client.default_namespace().to_owned(),
            wire: Wire::new(client),
            terminal,
            asked_namespace: options.namespace.clone(),
            data_dir: options.data_dir.clone(),
            places: Places::of(options),
            kinds: None,
            worst: Exit::Done,
        }
    }

    /// The kubeconfig in use.
    pub(crate) fn kubeconfig(&self) -> Result<PathBuf, Failure> {
        self.places.choose()
    }

    pub(crate) fn namespace(&self) -> String {
        self.asked_namespace.clone().unwrap_or_else(|| self.default_namespace.clone())
    }

    /// The words that name an object on a command line without `-n`.
    pub(crate) fn words(&self, item: &Item) -> String {
        if item.resource.namespaced && item.namespace != self.default_namespace {
            format!("{} -n {}", item.label(), item.namespace)
        } else {
            item.label()
        }
    }

    /// The namespace that lists are taken from, or none for all.
    pub(crate) fn scope(&self, all_namespaces: bool) -> Option<String> {
        (!all_namespaces).then(|| self.namespace())
    }

    /// The server's kinds, asked for once.
    pub(crate) async fn kinds(&mut self) -> Result<Rc<Kinds>, Failure> {
        if let Some(kinds) = &self.kinds {
            return Ok(Rc::clone(kinds));
        }
        let kinds = Rc::new(self.wire.kinds().await?);
        self.kinds = Some(Rc::clone(&kinds));
        Ok(kinds)
    }

    /// One line of result.
    pub(crate) fn say(&mut self, line: impl std::fmt::Display) -> Result<(), Failure> {
        writeln!(self.terminal.out, "{line}")?;
        Ok(())
    }

    /// One line beside the result.
    pub(crate) fn note(&mut self, line: impl std::fmt::Display) {
        // Nobody can be told that telling failed.
        writeln!(self.terminal.err, "{line}").ok();
    }

    /// Reports a failure and goes on; the first one decides the exit code.
    pub(crate) fn report(&mut self, failure: &Failure) {
        if self.worst == Exit::Done {
            self.worst = failure.exit;
        }
        if failure.exit != Exit::Done {
            self.note(failure);
        }
    }

    /// The exit code after everything was tried.
    pub(crate) fn worst(&self) -> Exit {
        self.worst
    }

    pub(crate) fn warn_all(&mut self, answer: &Answer) {
        for warning in &answer.warnings {
            self.note(format_args!("warning: {warning}"));
        }
    }

    /// What the words after a verb point at: `KIND[,KIND] [NAME…]` or `KIND/NAME…`.
    pub(crate) async fn targets(&mut self, words: &[String]) -> Result<Vec<Target>, Failure> {
        let kinds = self.kinds().await?;
        let Some(first) = words.first() else {
            return Err(Failure::usage("no kind is named").try_this("write KIND, KIND NAME or KIND/NAME"));
        };
        if words.iter().any(|word| word.contains('/')) {
            return words.iter().map(|word| pair(&kinds, word)).collect();
        }
        let mut targets = Vec::new();
        for word in first.split(',').filter(|word| !word.is_empty()) {
            let resource = kinds.find(word)?;
            let names = &words[1..];
            if names.is_empty() {
                targets.push(Target { resource: resource.clone(), name: None });
            }
            targets.extend(
                names.iter().map(|name| Target { resource: resource.clone(), name: Some(name.clone()) }),
            );
        }
        Ok(targets)
    }

    /// One object by `KIND/NAME` or `KIND NAME`.
    pub(crate) async fn one_target(&mut self, words: &[String]) -> Result<(Resource, String), Failure> {
        let mut targets = self.targets(words).await?;
        match (targets.pop(), targets.is_empty()) {
            (Some(Target { resource, name: Some(name) }), true) => Ok((resource, name)),
            _ => Err(Failure::usage("one object is wanted here").try_this("write KIND/NAME")),
        }
    }

    /// Every object of the named files, directories and `-`, in order.
    pub(crate) fn manifests(
        &mut self,
        files: &[String],
        recursive: bool,
    ) -> Result<Vec<manifest::Document>, Failure> {
        let mut documents = Vec::new();
        for file in files {
            for (name, text) in self.read(file, recursive)? {
                let read = manifest::parse(&text, &name);
                documents.extend(read.map_err(|error| {
                    Failure::failed(error.to_string()).try_this("correct the file; nothing was sent")
                })?);
            }
        }
        if documents.is_empty() {
            let names = files.iter().map(|file| if file == "-" { "stdin" } else { file.as_str() });
            let all = names.collect::<Vec<_>>().join(", ");
            return Err(
                Failure::failed("the files hold no objects").because(format!("nothing was read from {all}"))
            );
        }
        Ok(documents)
    }

    /// The objects of files with the kinds and namespaces that the server has for them. Every fault is reported
    /// before anything is done.
    pub(crate) async fn items_of_files(
        &mut self,
        files: &[String],
        recursive: bool,
    ) -> Result<Vec<Item>, Failure> {
        let documents = self.manifests(files, recursive)?;
        let kinds = self.kinds().await?;
        let mut items = Vec::new();
        for document in documents {
            match self.item_of(&kinds, &document) {
                Ok(item) => items.push(item),
                Err(failure) => self.report(&failure.about(&document.origin)),
            }
        }
        if self.worst == Exit::Done { Ok(items) } else { Err(Failure::new(self.worst, "nothing was sent")) }
    }

    fn item_of(&self, kinds: &Kinds, document: &manifest::Document) -> Result<Item, Failure> {
        let mut object = document.object.clone();
        let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let missing = |field: &str| Failure::failed(format!("{field} is missing"));
        let api_version = text(&object["apiVersion"]).ok_or_else(|| missing("apiVersion"))?;
        let kind = text(&object["kind"]).ok_or_else(|| missing("kind"))?;
        let resource = kinds.of_object(&api_version, &kind)?.clone();
        let name = text(&object["metadata"]["name"]).ok_or_else(|| missing("metadata.name"))?;
        let written = text(&object["metadata"]["namespace"]);
        let namespace = match (&written, &self.asked_namespace) {
            (Some(written), Some(asked)) if written != asked && resource.namespaced => {
                let what =
                    format!("{} is of namespace {written}, and -n says {asked}", resource.label(&name));
                return Err(Failure::failed(what).try_this("drop one of the two"));
            }
            (Some(written), _) => written.clone(),
            (None, _) => self.namespace(),
        };
        if resource.namespaced {
            object["metadata"]["namespace"] = namespace.clone().into();
        }
        Ok(Item { resource, namespace, name, object })
    }

    /// The objects that words and flags point at: named ones, or all that a selection finds.
    pub(crate) async fn items_of_words(
        &mut self,
        words: &[String],
        chosen: &Selection,
        all: bool,
    ) -> Result<Vec<Item>, Failure> {
        let selecting = chosen.selects();
        let mut items = Vec::new();
        for Target { resource, name } in self.targets(words).await? {
            let namespace = self.namespace();
            match name {
                Some(_) if selecting || all => {
                    return Err(Failure::usage("a name excludes --all and selectors"));
                }
                Some(name) => items.push(Item { resource, namespace, name, object: Value::Null }),
                None if selecting || all => {
                    let parameters = selection(chosen.selector.as_deref(), chosen.field_selector.as_deref());
                    let path = resource.collection(self.scope(chosen.all_namespaces).as_deref());
                    let list = self.wire.list(&path, &parameters, Form::Object).await?;
                    items.extend(list["items"].as_array().into_iter().flatten().map(|found| Item {
                        resource: resource.clone(),
                        namespace: found["metadata"]["namespace"].as_str().unwrap_or(&namespace).to_owned(),
                        name: found["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
                        object: Value::Null,
                    }));
                }
                None => {
                    let failure = Failure::usage(format!("no {} is named", resource.singular));
                    return Err(failure.try_this("name objects, or give --all or a selector"));
                }
            }
        }
        Ok(items)
    }

    fn read(&mut self, file: &str, recursive: bool) -> Result<Vec<(String, String)>, Failure> {
        let unreadable = |name: &str, error: &std::io::Error| {
            let failure = Failure::failed(format!("{name} cannot be read")).because(error.to_string());
            if name.contains("://") {
                failure.try_this("download it first; URLs are not opened")
            } else {
                failure
            }
        };
        if file == "-" {
            let limit = manifest::MAX_BYTES as u64 + 1;
            let mut text = String::new();
            let read = (&mut self.terminal.input).take(limit).read_to_string(&mut text);
            return read.map(|_| vec![("stdin".to_owned(), text)]).map_err(|e| unreadable("stdin", &e));
        }
        let mut paths = Vec::new();
        collect(&PathBuf::from(file), recursive, true, &mut paths).map_err(|e| unreadable(file, &e))?;
        let read = |path: &PathBuf| {
            let name = path.display().to_string();
            let text = std::fs::read_to_string(path).map_err(|e| unreadable(&name, &e))?;
            Ok((name, text))
        };
        paths.iter().map(read).collect()
    }

    /// Follows one object: `judge` sees it at first and after each change, until it gives a verdict.
    pub(crate) async fn follow<T>(
        &self,
        item: &Item,
        judge: impl FnMut(Option<&Value>) -> Option<T>,
    ) -> Result<T, Failure> {
        follow(&self.wire, item, judge).await
    }
}

/// Follows one object: `judge` sees it at first and after each change, until it gives a verdict.
pub(crate) async fn follow<T>(
    wire: &Wire,
    item: &Item,
    mut judge: impl FnMut(Option<&Value>) -> Option<T>,
) -> Result<T, Failure> {
    let path = item.resource.collection(Some(&item.namespace));
    let name = &item.name;
    let selector = format!("metadata.name={name}");
    let only = [("fieldSelector", selector.as_str())];
    loop {
        let list = wire.list(&path, &only, Form::Object).await?;
        if let Some(verdict) = judge(list["items"].get(0)) {
            return Ok(verdict);
        }
        let mut tail = Tail::new(&list);
        loop {
            match tail.next(wire, &path, &only, Form::Object).await? {
                Some((Change::Bookmark, _)) => {}
                Some((Change::Deleted, _)) => {
                    if let Some(verdict) = judge(None) {
                        return Ok(verdict);
                    }
                }
                Some((Change::Added | Change::Modified, object)) => {
                    if let Some(verdict) = judge(Some(&object)) {
                        return Ok(verdict);
                    }
                }
                None => break,
            }
        }
    }
}

/// The changes after a list, over as many watches as that takes.
pub(crate) struct Tail {
    version: String,
    open: Option<(Watch, std::time::Instant)>,
}

impl Tail {
    pub(crate) fn new(list: &Value) -> Self {
        let version = list["metadata"]["resourceVersion"].as_str().unwrap_or("0").to_owned();
        Self { version, open: None }
    }

    /// The next change; nothing once the versions are compacted away and a new list is needed.
    pub(crate) async fn next(
        &mut self,
        wire: &Wire,
        path: &str,
        parameters: &[(&str, &str)],
        form: Form,
    ) -> Result<Option<(Change, Value)>, Failure> {
        loop {
            let (mut watch, since) = match self.open.take() {
                Some(open) => open,
                None => {
                    let mut all = parameters.to_vec();
                    all.push(("resourceVersion", &self.version));
                    let opened = wire.watch(path, &all, form).await;
                    match opened {
                        // Some servers say so before the stream begins.
                        Err(failure) if failure.what.contains("too old resource version") => return Ok(None),
                        opened => (opened?, std::time::Instant::now()),
                    }
                }
            };
            match watch.next().await? {
                Step::Change(change, object) => {
                    if let Some(version) = version_of(&object) {
                        version.clone_into(&mut self.version);
                    }
                    self.open = Some((watch, since));
                    return Ok(Some((change, object)));
                }
                Step::Expired => return Ok(None),
                Step::Ended => {
                    // A server that closes watches at once must not be asked in a tight circle.
                    let least = std::time::Duration::from_secs(1);
                    tokio::time::sleep(least.saturating_sub(since.elapsed())).await;
                }
            }
        }
    }
}

fn version_of(object: &Value) -> Option<&str> {
    let own = object["metadata"]["resourceVersion"].as_str().filter(|v| !v.is_empty());
    own.or_else(|| object["rows"][0]["object"]["metadata"]["resourceVersion"].as_str())
}

/// Parameters of a list from what a person chose.
pub(crate) fn selection<'a>(
    labels: Option<&'a str>,
    fields: Option<&'a str>,
) -> Vec<(&'static str, &'a str)> {
    let mut parameters = Vec::new();
    parameters.extend(labels.map(|labels| ("labelSelector", labels)));
    parameters.extend(fields.map(|fields| ("fieldSelector", fields)));
    parameters
}

fn pair(kinds: &Kinds, word: &str) -> Result<Target, Failure> {
    let Some((kind, name)) = word.split_once('/') else {
        return Err(Failure::usage(format!("\"{word}\" has no kind, as others here have"))
            .try_this("write each object as KIND/NAME, or the kind once and names alone"));
    };
    if name.is_empty() || name.contains('/') {
        return Err(Failure::usage(format!("\"{word}\" is no KIND/NAME")));
    }
    Ok(Target { resource: kinds.find(kind)?.clone(), name: Some(name.to_owned()) })
}

fn collect(path: &PathBuf, recursive: bool, named: bool, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    if !path.is_dir() {
        let known = path.extension().is_some_and(|e| e == "yaml" || e == "yml" || e == "json");
        if named || known {
            found.push(path.clone());
        }
        return Ok(());
    }
    if !(named || recursive) {
        return Ok(());
    }
    let mut inside: Vec<PathBuf> =
        std::fs::read_dir(path)?.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>()?;
    inside.sort();
    inside.iter().try_for_each(|path| collect(path, recursive, false, found))
}

#[cfg(test)]
mod tests;
