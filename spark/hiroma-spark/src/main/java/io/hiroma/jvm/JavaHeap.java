package io.hiroma.jvm;

/** A Java heap as the JVM has it: where it is, and what each part of it is used for. For any number of threads. Internal to Hiroma. */
public interface JavaHeap {
  /** Numbers in {@link #regions}: what a region is used for. */
  int FREE = 0;
  /** Eden and survivors: objects that are moved or dropped soon. */
  int YOUNG = 1;
  /** One large object, which does not move. */
  int HUMONGOUS = 2;
  /** Old objects, also those of the archive. */
  int OLD = 3;
  /** Numbers that {@link #regions} has for each region. */
  int REGION_NUMBERS = 4;

  /** First address of what is reserved for the heap. */
  long base();

  /** Bytes that are reserved for the heap. */
  long length();

  /** Bytes of a region of G1; 0 with a collector whose heap has generations instead. */
  long regionBytes();

  /**
   * First address, end of what is used, end, and kind of each region that is there, from low addresses to high ones. The JVM goes on
   * meanwhile: each region is as it was at some moment during the call.
   *
   * @throws IllegalStateException if this JVM is not as expected
   */
  long[] regions();
}
