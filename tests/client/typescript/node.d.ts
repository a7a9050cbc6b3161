// The parts of Node that shop.ts uses.
declare const process: { argv: string[]; env: Record<string, string | undefined> };
declare const console: { log(text: string): void };
