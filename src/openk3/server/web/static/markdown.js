// A safe part of Markdown, shown by making elements: paragraphs, headings, lists, code, bold.
// Unusual: text never becomes markup, so whatever a model writes can at most look odd; links stay text.

const FENCE = /^( *)(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^(#{1,6}) +(.*)$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +(.*)|)$/;
const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const MOST_LEVELS = 8;

// Shows a text that grows: only what follows the last finished block is made anew.
export class LiveMarkdown {
  #element;
  #finished = 0; // where the text begins that may still change
  #open = []; // its nodes

  constructor(element) {
    this.#element = element;
  }

  // Shows `text`, which begins with what was shown before.
  update(text) {
    this.#open.forEach((node) => node.remove());
    const blocks = blocksOf(text, this.#finished);
    const nodes = blocks.map(nodeOf);
    this.#element.append(...nodes);
    const finished = finishedCount(blocks, text);
    this.#open = nodes.slice(finished);
    if (finished) this.#finished = blocks[finished].start;
  }
}

// A block is finished when the next one has begun for certain: its first line is whole.
function finishedCount(blocks, text) {
  const last = blocks.length - 1;
  if (last < 1) return 0;
  return text.indexOf("\n", blocks[last].start) === -1 ? last - 1 : last;
}

// Cuts text from `start` into blocks: {kind, start, …}.
export function blocksOf(text, start = 0) {
  const blocks = [];
  let block = null;
  while (start < text.length) {
    const end = text.indexOf("\n", start);
    const line = text.slice(start, end === -1 ? text.length : end).replace(/\r$/, "");
    if (!block || !takes(block, line)) {
      block = begin(line, start);
      if (block) blocks.push(block);
    }
    start = end === -1 ? text.length : end + 1;
  }
  return blocks;
}

function begin(line, start) {
  if (!line.trim()) return null;
  const fence = FENCE.exec(line);
  if (fence) return { kind: "code", start, indent: fence[1].length, fence: fence[2], language: fence[3].trim(), lines: [], closed: false };
  const heading = HEADING.exec(line);
  if (heading) return { kind: "heading", start, level: heading[1].length, text: heading[2].trim() };
  if (RULE.test(line)) return { kind: "rule", start };
  const item = ITEM.exec(line);
  if (item) return { kind: "list", start, items: [itemOf(item)], blank: false };
  return { kind: "paragraph", start, lines: [line] };
}

function itemOf([, indent, marker, text]) {
  return { indent: indent.length, number: parseInt(marker, 10), text: text ?? "" };
}

// Takes a line into a block, unless it belongs to another.
function takes(block, line) {
  if (block.kind === "code") return takesCode(block, line);
  if (block.kind === "list") return takesItem(block, line);
  if (block.kind !== "paragraph" || !line.trim() || begin(line, 0).kind !== "paragraph") return false;
  block.lines.push(line);
  return true;
}

function takesCode(block, line) {
  if (block.closed) return false;
  const bare = line.trim();
  block.closed = bare.length >= block.fence.length && bare === block.fence[0].repeat(bare.length);
  if (!block.closed) block.lines.push(line.slice(Math.min(block.indent, line.search(/\S|$/))));
  return true;
}

function takesItem(block, line) {
  const wasBlank = block.blank;
  block.blank = !line.trim();
  if (block.blank) return true;
  const item = RULE.test(line) ? null : ITEM.exec(line);
  if (item) {
    const found = itemOf(item);
    if (found.indent === 0 && Number.isNaN(found.number) !== Number.isNaN(block.items[0].number)) return false;
    block.items.push(found);
    return true;
  }
  if (begin(line, 0).kind !== "paragraph" || (wasBlank && !line.startsWith("  "))) return false;
  block.items.at(-1).text += (wasBlank ? "\n\n" : "\n") + line.trim();
  return true;
}

function nodeOf(block) {
  if (block.kind === "code") return codeNode(block);
  if (block.kind === "heading") return withInline(element(`h${Math.min(block.level + 2, 6)}`), block.text);
  if (block.kind === "rule") return element("hr");
  if (block.kind === "list") return listNode(block.items);
  return withInline(element("p"), block.lines.join("\n"));
}

function codeNode({ language, lines }) {
  const box = element("div", "code");
  const pre = element("pre");
  pre.tabIndex = 0; // so that the keyboard can scroll it
  pre.append(Object.assign(element("code"), { textContent: lines.join("\n") }));
  if (language) box.append(Object.assign(element("span", "language"), { textContent: language }));
  box.append(pre);
  return box;
}

// Nests items by their indentation: at least two columns more than the one above is one level deeper.
function listNode(items) {
  const root = listLike(items[0]);
  const levels = [{ indent: items[0].indent, list: root }];
  for (const item of items) {
    while (levels.length > 1 && item.indent < levels.at(-1).indent) levels.pop();
    const parent = levels.at(-1).list.lastElementChild;
    if (parent && levels.length < MOST_LEVELS && item.indent >= levels.at(-1).indent + 2) {
      const list = listLike(item);
      parent.append(list);
      levels.push({ indent: item.indent, list });
    }
    levels.at(-1).list.append(withInline(element("li"), item.text));
  }
  return root;
}

function listLike(item) {
  if (Number.isNaN(item.number)) return element("ul");
  return Object.assign(element("ol"), { start: item.number });
}

// Adds text with `code` and **bold** to an element and returns it.
export function withInline(target, text) {
  let bold = null;
  for (const token of inlineTokens(text)) {
    const into = bold ?? target;
    if (token.code !== undefined) into.append(Object.assign(element("code"), { textContent: token.code }));
    else if (token.text !== undefined) into.append(token.text);
    else if (bold && token.closes) bold = null;
    else if (!bold && token.opens) target.append((bold = element("strong")));
    else into.append("**");
  }
  if (bold) bold.replaceWith("**", ...bold.childNodes); // never closed
  return target;
}

function inlineTokens(text) {
  const pieces = text.split(/(`+|\*\*)/);
  const closers = nextEqual(pieces);
  const tokens = [];
  for (let i = 0; i < pieces.length; i++) {
    const piece = pieces[i];
    if (i % 2 === 0) tokens.push({ text: piece });
    else if (piece === "**") tokens.push({ opens: /^\S/.test(pieces[i + 1] || pieces[i + 2] || ""), closes: /\S$/.test(pieces[i - 1] || pieces[i - 2] || "") });
    else if (closers[i]) {
      tokens.push({ code: pieces.slice(i + 1, closers[i]).join("") });
      i = closers[i];
    } else tokens.push({ text: piece });
  }
  return tokens;
}

// For each run of backquotes, where the next of the same length stands.
function nextEqual(pieces) {
  const next = new Map();
  const closers = [];
  for (let i = pieces.length - 2; i > 0; i -= 2) {
    closers[i] = next.get(pieces[i]);
    next.set(pieces[i], i);
  }
  return closers;
}

function element(name, className) {
  const node = document.createElement(name);
  if (className) node.className = className;
  return node;
}
