// Files to send with a message: pictures, and texts. Each is read and bounded here, before it
// is sent. A large picture is made smaller. Nothing else is taken, because no model could read it.

import { fileText } from "../state/content.js";

export const FILES_MAX = 8;
export const TEXT_BYTES_MAX = 256 * 1024;
const PICTURE_BYTES_MAX = 20 * 1024 * 1024;
const SENT_BYTES_MAX = 1024 * 1024;
const EDGE_MAX = 1_600;
const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);

export class NotTaken extends Error {}

/** Reads a file. Returns what is shown and sent of it; throws `NotTaken` with the reason. */
export async function readFile(file) {
  const name = file.name || "picture";
  return PICTURES.has(file.type) ? readPicture(file, name) : readText(file, name);
}

async function readText(file, name) {
  if (file.size > TEXT_BYTES_MAX)
    throw new NotTaken(`${name} is too long: at most ${TEXT_BYTES_MAX / 1024} KB of text.`);
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    throw new NotTaken(`${name} is neither text nor a picture (PNG, JPEG, GIF, WebP).`);
  }
  if (text.includes("\0")) throw new NotTaken(`${name} is not a text.`);
  return { name, size: file.size, text, picture: null };
}

async function readPicture(file, name) {
  if (file.size > PICTURE_BYTES_MAX) throw new NotTaken(`${name} is larger than 20 MB.`);
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new NotTaken(`${name} cannot be read as a picture.`);
  }
  const small = file.size <= SENT_BYTES_MAX && Math.max(bitmap.width, bitmap.height) <= EDGE_MAX;
  const sent = small ? file : await smaller(bitmap, name);
  const data = await base64(sent);
  return { name, size: sent.size, text: null, picture: { media_type: sent.type, data }, bitmap };
}

async function smaller(bitmap, name) {
  let edge = EDGE_MAX;
  for (const quality of [0.85, 0.7, 0.5]) {
    const canvas = drawn(bitmap, edge);
    const blob = await new Promise((on) => canvas.toBlob(on, "image/jpeg", quality));
    if (blob !== null && blob.size <= SENT_BYTES_MAX) return blob;
    edge = Math.round(edge * 0.7);
  }
  throw new NotTaken(`${name} cannot be made small enough.`);
}

/** Draws a picture so that its longer side has at most so many pixels. */
export function drawn(bitmap, edge) {
  const scale = Math.min(1, edge / Math.max(bitmap.width, bitmap.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas;
}

async function base64(blob) {
  const bytes = new Uint8Array(await blob.arrayBuffer());
  let text = "";
  for (let at = 0; at < bytes.length; at += 8_192)
    text += String.fromCharCode(...bytes.subarray(at, at + 8_192));
  return btoa(text);
}

/** Returns the words with the texts of the files, and the pictures apart. */
export function joined(words, files) {
  const texts = files.filter(({ text }) => text !== null);
  const pieces = [words, ...texts.map(({ name, text }) => fileText(name, text))];
  const pictures = files.filter(({ picture }) => picture !== null).map(({ picture }) => picture);
  return { text: pieces.filter(Boolean).join("\n\n"), pictures };
}
